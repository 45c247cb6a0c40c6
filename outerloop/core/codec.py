"""Encode the tensors of a fragment as wire messages, and decode them again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from outerloop import wire
from outerloop.compress.by_size import compressor_of
from outerloop.kernels.finite import all_finite
from outerloop.protocols import Announcing, Compressor, Stateful, Transforming
from outerloop.types import CodecContext, Contribution, Parts, Round

LONGEST_REASON = 300
"""Maximum length, in characters, of the reason for rejecting a message. The reason may quote untrusted content."""


class UpdateCodec:
    """Encodes this peer's updates, decodes all peers' updates, and stores the tensors agreed on for the next round.

    Args:
        compress: the compressor, the same on all peers.
        seed: the seed of the run, the same on all peers.
        extra_schema: returns the names and shapes of the additional tensors in a fragment's messages, such as buffers.
    """

    def __init__(
        self, compress: Compressor, *, seed: int, extra_schema: Callable[[int], wire.Schema] = lambda fragment: {}
    ) -> None:
        self.compress, self.seed, self.extra_schema = compress, seed, extra_schema
        self.agreed: dict[str, tuple[int, Tensor]] = {}
        self.stateful = compress if isinstance(compress, Stateful) else None

    def encode(self, number: int, name: str, x: Tensor, *, leads: bool) -> Parts:
        """Compress tensor x, named `name`, for round `number`.

        leads: whether this peer chooses the tensors that all peers use in the next round (types.CodecContext). If so,
            the compressor may add a "next" part.
        """
        return self.compress.encode(x, replace(self.context(number, name), leads=leads))

    def unpack(self, contribution: Contribution, like: Mapping[str, Tensor]) -> wire.Message:
        """Unpack one peer's message.

        Raises InvalidMessage if it does not fit the fragment's tensors (`like`), or if it names another peer or round
        than `contribution`.
        """
        message = wire.unpack(contribution.blob, self.schema(contribution.round, like))
        claims = message.header.peer, Round(message.header.round, message.header.fragment)
        if claims != (contribution.peer, contribution.round):
            sender, round = claims
            raise wire.InvalidMessage(
                f"{contribution.peer} sent a message for another peer or round: {sender}, {round}; expected"
                f" {contribution.round}"
            )
        return message

    def schema(self, round: Round, like: Mapping[str, Tensor]) -> wire.Schema:
        """Return the name and shape of each tensor in a message for this round. `like`: the fragment's tensors."""
        return schema_of(like) | self.extra_schema(round.fragment)

    def decode(self, message: wire.Message, name: str, like: Tensor) -> Tensor:
        """Decode tensor `name` of a message to a dense tensor on the device of `like`.

        Raises InvalidMessage, naming the peer and the tensor, if decoding fails.
        """
        return self.read(message, name, like, self.compress.decode)

    def coefficients(self, message: wire.Message, name: str, like: Tensor) -> Tensor:
        """Decode tensor `name` of a message, but do not invert the compressor's transform.

        If the compressor has a transform, this returns coefficients; otherwise, it is the same as `decode`. The result
        has the shape and device of `like`. Raises InvalidMessage, naming the peer and the tensor, if decoding fails.
        """
        codec = compressor_of(self.compress, like.shape)
        return self.read(message, name, like, getattr(codec, "coefficients", codec.decode))

    def values(self, number: int, name: str, aggregate: Tensor) -> Tensor:
        """Convert aggregated coefficients to values by applying the compressor's inverse transform, if it has one.

        A non-finite aggregate is returned unchanged.
        """
        codec = compressor_of(self.compress, aggregate.shape)
        if not isinstance(codec, Transforming) or not all_finite(aggregate):
            return aggregate
        return codec.inverse(aggregate, self.context(number, name))

    def read(self, message: wire.Message, name: str, like: Tensor, decode: Callable[..., Tensor]) -> Tensor:
        """Apply `decode` to one tensor of a message. Raises InvalidMessage, naming peer and tensor, if it fails."""
        with blaming(message, name):
            context = self.context(message.header.round, name)
            return checked(decode(on(like.device, message.parts[name]), like.shape, context), like)

    def context(self, number: int, name: str) -> CodecContext:
        """Return the codec context of tensor `name` in round `number`, which is equal on all peers.

        The seed is different for each round and each tensor.
        """
        holds_in, agreed = self.agreed.get(name, (None, None))
        seed = wire.name_hash(f"{self.seed} {number} {name}")
        return CodecContext(number, seed, agreed=agreed if holds_in == number else None, name=name)

    def landed_own(self, message: wire.Message, name: str, like: Tensor) -> None:
        """Pass one tensor of this peer's landed message to the compressor, if the compressor is stateful."""
        if self.stateful:
            context = self.context(message.header.round, name)
            self.stateful.landed(on(like.device, message.parts[name]), like.shape, context)

    def landed(self, messages: Sequence[wire.Message], like: Mapping[str, Tensor]) -> None:
        """Store the "next" parts of the leader's landed message. They apply in the following round only.

        If a round fails, the following round has no agreed tensors.

        messages: all messages of the landed round, sorted by peer name. "next" parts of other peers are ignored, and so
            are those of tensors that are not parameters, or whose compressor announces nothing.
        """
        holds_in = messages[0].header.round + 1
        for name, parts in messages[leader(holds_in, len(messages))].parts.items():
            if "next" in parts and name in like and announcing(self.compress, like[name].shape):
                self.agreed[name] = holds_in, parts["next"].to(like[name].device)

    def state_dict(self) -> dict[str, Any]:
        """Return the agreed tensors: {"agreed": {tensor name: (round number in which it applies, agreed tensor)}}."""
        return {"agreed": dict(self.agreed)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.agreed = dict(state["agreed"])


def announcing(compress: Compressor, shape: torch.Size) -> Announcing | None:
    """Return the compressor that announces positions for a tensor of this shape, or None if none does.

    It may compress the coefficients of a transform.
    """
    codec = compressor_of(compress, shape)
    while isinstance(codec, Transforming):
        codec = compressor_of(codec.of, shape)
    return codec if isinstance(codec, Announcing) else None


def leader(number: int, peers: int) -> int:
    """Return the index, by name, of the peer whose "next" parts apply in round `number`. Peers take turns."""
    return number % peers


def schema_of(tensors: Mapping[str, Tensor]) -> wire.Schema:
    """Return the shape of each tensor by name."""
    return {name: x.shape for name, x in tensors.items()}


def on(device: torch.device, parts: Parts) -> Parts:
    """Return the parts, moved to a device."""
    return {name: x.to(device) for name, x in parts.items()}


@contextmanager
def blaming(message: wire.Message, name: str) -> Iterator[None]:
    """Convert a codec's decoding error to an InvalidMessage that names the peer and the tensor."""
    try:
        yield
    except (ValueError, KeyError) as bad:
        reason = str(bad)[:LONGEST_REASON]
        raise wire.InvalidMessage(f"payload of {message.header.peer}, tensor {name}: {reason}") from bad


def checked(x: Tensor, like: Tensor) -> Tensor:
    """Return a decoded tensor unchanged. Raises ValueError unless its dtype is float32 or that of `like`.

    A codec that sends values unchanged keeps the dtype that the sender chose. If this is float64, a value such as 1e300
    would become infinite when it is converted to float32.
    """
    if x.dtype not in (torch.float32, like.dtype):
        raise ValueError(f"decodes to {x.dtype}, but only torch.float32 and {like.dtype} are allowed")
    return x
