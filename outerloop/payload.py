"""Tensors <-> one message: the compressor on every tensor of a fragment, and the wire around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from outerloop import wire
from outerloop.compress.by_size import BySize
from outerloop.compress.topk import TopK
from outerloop.types import Compressor, Contribution, Moment, Parts, Round


class Payload:
    """Encodes what this peer offers and decodes what all peers sent.

    Args:
        compress: the compressor; the same on all peers.
        seed: of the run; the same on all peers.
    """

    def __init__(self, compress: Compressor, *, seed: int) -> None:
        self.compress, self.seed = compress, seed

    def encode(self, number: int, name: str, x: Tensor) -> Parts:
        """Compress one tensor in this round."""
        return self.compress.encode(x, self.moment(number, name))

    def unpack(self, contribution: Contribution, like: Mapping[str, Tensor]) -> wire.Message:
        """One peer's message. Raises BadMessage when it is of another model, round or peer than it came as."""
        message = wire.unpack(contribution.blob, schema_of(like))
        claims = message.header.peer, Round(message.header.round, message.header.fragment)
        if claims != (contribution.peer, contribution.round):
            raise wire.BadMessage(f"{contribution.peer} sends a message of {claims} in {contribution.round}")
        return message

    def decode(self, message: wire.Message, name: str, like: Tensor) -> Tensor:
        """One tensor of one message, dense, on the device of `like`. Raises BadMessage naming peer and tensor."""
        with blaming(message, name):
            moment = self.moment(message.header.round, name)
            return self.compress.decode(on(like.device, message.parts[name]), like.shape, moment)

    def decode_kept(self, message: wire.Message, name: str, like: Tensor) -> tuple[Tensor, Tensor]:
        """Positions and values (M,) of a tensor whose codec is top-k. Raises BadMessage naming peer and tensor."""
        topk = self.codec(like)
        assert isinstance(topk, TopK)
        with blaming(message, name):
            moment = self.moment(message.header.round, name)
            return topk.unpack(on(like.device, message.parts[name]), topk.rows_at(like.numel(), moment), moment)

    def codec(self, like: Tensor) -> Compressor:
        """The compressor that a tensor of this shape meets in the end."""
        return self.compress.of(like.shape) if isinstance(self.compress, BySize) else self.compress

    def moment(self, number: int, name: str) -> Moment:
        """What compressors may know and draw from: equal on all peers, another seed for every round and tensor."""
        return Moment(number, wire.name_hash(f"{self.seed} {number} {name}"))


def schema_of(tensors: Mapping[str, Tensor]) -> wire.Schema:
    """Names and shapes."""
    return {name: x.shape for name, x in tensors.items()}


def on(device: torch.device, parts: Parts) -> Parts:
    """Parts on a device."""
    return {name: x.to(device) for name, x in parts.items()}


@contextmanager
def blaming(message: wire.Message, name: str) -> Iterator[None]:
    """What a codec cannot decode becomes a BadMessage with the peer's and the tensor's name."""
    try:
        yield
    except (ValueError, KeyError) as bad:
        raise wire.BadMessage(f"payload of {message.header.peer}, tensor {name}: {bad}") from bad
