"""Convert the tensors of a fragment to messages and back, with the compressor and the wire format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from outerloop import wire
from outerloop.compress.by_size import codec_of
from outerloop.kernels.finite import all_finite
from outerloop.protocols import Compressor, Stateful, Transforming
from outerloop.types import CodecContext, Contribution, Parts, Round

LONGEST_REASON = 300
"""Maximum number of characters of the reason why a message is invalid. The reason may quote the message."""


class UpdateCodec:
    """Encodes this peer's updates, decodes those of all peers, and stores what peers agreed on for the next round.

    Args:
        compress: the compressor; the same on all peers.
        seed: the seed of the run; the same on all peers.
        beside: fragment -> names and shapes of the tensors that its messages contain in addition to weights.
    """

    def __init__(
        self, compress: Compressor, *, seed: int, beside: Callable[[int], wire.Schema] = lambda fragment: {}
    ) -> None:
        self.compress, self.seed, self.beside = compress, seed, beside
        self.agreed: dict[str, tuple[int, Tensor]] = {}
        self.stateful = compress if isinstance(compress, Stateful) else None

    def encode(self, number: int, name: str, x: Tensor, *, leads: bool) -> Parts:
        """Compress one tensor in this round.

        leads: whether this peer is the leader, so that the parts must include "next", which applies in the next round.
        """
        return self.compress.encode(x, replace(self.context(number, name), leads=leads))

    def unpack(self, contribution: Contribution, like: Mapping[str, Tensor]) -> wire.Message:
        """Return one peer's message.

        Raises InvalidMessage if it is for another model, or if its round or peer differs from that of `contribution`.
        """
        message = wire.unpack(contribution.blob, self.schema(contribution.round, like))
        claims = message.header.peer, Round(message.header.round, message.header.fragment)
        if claims != (contribution.peer, contribution.round):
            raise wire.InvalidMessage(
                f"{contribution.peer} sends a message of another peer or round: {claims} in {contribution.round}"
            )
        return message

    def schema(self, round: Round, like: Mapping[str, Tensor]) -> wire.Schema:
        """Return the names and shapes of all tensors in a message of this round. `like`: tensors of its fragment."""
        return schema_of(like) | self.beside(round.fragment)

    def decode(self, message: wire.Message, name: str, like: Tensor) -> Tensor:
        """Decode one tensor of one message to a dense tensor on the device of `like`.

        Raises InvalidMessage, naming the peer and the tensor, if this fails.
        """
        return self.read(message, name, like, self.compress.decode)

    def coefficients(self, message: wire.Message, name: str, like: Tensor) -> Tensor:
        """Return the coefficients of one tensor of one message if the compressor applies a transform.

        Otherwise, return what `decode` returns. Shape and device are those of `like`. Raises InvalidMessage, naming the
        peer and the tensor, if decoding fails.
        """
        codec = codec_of(self.compress, like.shape)
        return self.read(message, name, like, codec.coefficients if isinstance(codec, Transforming) else codec.decode)

    def values(self, number: int, name: str, aggregate: Tensor) -> Tensor:
        """Convert the aggregate of coefficients to values: apply the inverse transform if the compressor has one.

        An aggregate that is not finite is returned unchanged.
        """
        codec = codec_of(self.compress, aggregate.shape)
        if not isinstance(codec, Transforming) or not all_finite(aggregate):
            return aggregate
        return codec.inverse(aggregate, self.context(number, name))

    def read(self, message: wire.Message, name: str, like: Tensor, decode: Callable[..., Tensor]) -> Tensor:
        """Apply `decode` to one tensor of one message. Raises InvalidMessage, naming peer and tensor, if this fails."""
        with blaming(message, name):
            context = self.context(message.header.round, name)
            return checked(decode(on(like.device, message.parts[name]), like.shape, context), like)

    def context(self, number: int, name: str) -> CodecContext:
        """Return the context of one tensor in one round, equal on all peers.

        The seed differs between rounds and between tensors.
        """
        holds_in, agreed = self.agreed.get(name, (None, None))
        seed = wire.name_hash(f"{self.seed} {number} {name}")
        return CodecContext(number, seed, agreed=agreed if holds_in == number else None, name=name)

    def landed_own(self, message: wire.Message, name: str, like: Tensor) -> None:
        """Pass one tensor of this peer's landed message to the compressor, if the compressor has a state."""
        if self.stateful:
            context = self.context(message.header.round, name)
            self.stateful.landed(on(like.device, message.parts[name]), like.shape, context)

    def landed(self, messages: Sequence[wire.Message], like: Mapping[str, Tensor]) -> None:
        """Store the leader's "next" parts, which apply in the next round only.

        So if a round fails, nothing is agreed on for the following round.

        messages: in peer-name order. "next" parts of peers other than the leader are ignored.
        """
        holds_in = messages[0].header.round + 1
        for name, parts in messages[leader(holds_in, len(messages))].parts.items():
            if "next" in parts:
                self.agreed[name] = holds_in, parts["next"].to(like[name].device)

    def state_dict(self) -> dict[str, Any]:
        """Return what was agreed on: tensor name -> (number of the round in which it applies, agreed tensor)."""
        return {"agreed": dict(self.agreed)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.agreed = dict(state["agreed"])


def leader(number: int, peers: int) -> int:
    """Return the index, in name order, of the peer whose "next" parts apply in this round. Peers take turns."""
    return number % peers


def schema_of(tensors: Mapping[str, Tensor]) -> wire.Schema:
    """Return the names and shapes of tensors."""
    return {name: x.shape for name, x in tensors.items()}


def on(device: torch.device, parts: Parts) -> Parts:
    """Return the parts moved to a device."""
    return {name: x.to(device) for name, x in parts.items()}


@contextmanager
def blaming(message: wire.Message, name: str) -> Iterator[None]:
    """Turn a decoding error of a codec into an InvalidMessage that names the peer and the tensor."""
    try:
        yield
    except (ValueError, KeyError) as bad:
        reason = str(bad)[:LONGEST_REASON]
        raise wire.InvalidMessage(f"payload of {message.header.peer}, tensor {name}: {reason}") from bad


def checked(x: Tensor, like: Tensor) -> Tensor:
    """Return a decoded tensor. Raises ValueError unless its dtype is float32 or the dtype of `like`.

    The check is needed because codecs that send values unchanged keep the sender's dtype, and a value such as 1e300 is
    finite only in float64.
    """
    if x.dtype not in (torch.float32, like.dtype):
        raise ValueError(f"decodes to {x.dtype}, expected {like.dtype}")
    return x
