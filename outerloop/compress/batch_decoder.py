"""Decode the payloads of several peers together if the codec supports it, else one by one.

P peers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Size, Tensor

from outerloop.protocols import Compressor
from outerloop.types import CodecContext, Parts


@runtime_checkable
class BatchDecoder(Protocol):
    """A compressor that decodes the payloads of P peers for one tensor together, faster than one by one."""

    def decode_all(self, parts_P: Sequence[Parts], shape: Size, context: CodecContext) -> Tensor:
        """Return (P, *shape) float32. Raises ValueError if any of them cannot be decoded."""
        ...


def decode_all(codec: Compressor, parts_P: Sequence[Parts], shape: Size, context: CodecContext) -> Tensor:
    """Decode the parts of P >= 1 peers to (P, *shape) float32, with any codec. Raises ValueError as the codec does."""
    if isinstance(codec, BatchDecoder):
        return codec.decode_all(parts_P, shape, context)
    return torch.stack([codec.decode(parts, shape, context).float() for parts in parts_P])
