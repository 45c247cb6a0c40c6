"""Tensors <-> one message: the compressor on every tensor of a fragment, and the wire around it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from outerloop import wire
from outerloop.types import Compressor, Contribution, Moment, Round, Tensors

LONGEST_REASON = 300
"""Characters: a reason may quote what the sender wrote."""


class Payload:
    """Encodes what this peer offers and decodes what all peers sent.

    Args:
        compress: the compressor; the same on all peers.
        seed: of the run; the same on all peers.
    """

    def __init__(self, compress: Compressor, *, seed: int) -> None:
        self.compress, self.seed = compress, seed

    def pack(self, header: wire.Header, offered: Tensors) -> bytes:
        """Compress every tensor and join them to one message."""
        parts = {name: self.compress.encode(x, self.moment(header.round, name)) for name, x in offered.items()}
        return wire.pack(header, parts)

    def unpack(self, contribution: Contribution, like: Mapping[str, Tensor]) -> wire.Message:
        """One peer's message. Raises BadMessage when it is of another model, round or peer than it came as."""
        message = wire.unpack(contribution.blob, schema_of(like))
        claims = message.header.peer, Round(message.header.round, message.header.fragment)
        if claims != (contribution.peer, contribution.round):
            raise wire.BadMessage(f"{contribution.peer} sends a message of {claims} in {contribution.round}")
        return message

    def decode(self, message: wire.Message, name: str, like: Tensor) -> Tensor:
        """One tensor of one message, dense, on the device of `like`. Raises BadMessage naming peer and tensor."""
        parts = {part: x.to(like.device) for part, x in message.parts[name].items()}
        try:
            return checked(self.compress.decode(parts, like.shape, self.moment(message.header.round, name)), like)
        except (ValueError, KeyError) as bad:
            reason = str(bad)[:LONGEST_REASON]
            raise wire.BadMessage(f"payload of {message.header.peer}, tensor {name}: {reason}") from bad

    def moment(self, number: int, name: str) -> Moment:
        """What compressors may know and draw from: equal on all peers, another seed for every round and tensor."""
        return Moment(number, wire.name_hash(f"{self.seed} {number} {name}"))


def schema_of(tensors: Mapping[str, Tensor]) -> wire.Schema:
    """Names and shapes."""
    return {name: x.shape for name, x in tensors.items()}


def checked(x: Tensor, like: Tensor) -> Tensor:
    """A decoded tensor, which codecs that send values as they are may leave in any precision that the sender chose.

    Raises ValueError unless it is float32, or that of `like`: 1e300 is finite in float64 alone.
    """
    if x.dtype not in (torch.float32, like.dtype):
        raise ValueError(f"decodes to {x.dtype}, expected {like.dtype}")
    return x
