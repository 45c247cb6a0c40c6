"""Payloads of several peers decoded in one go, by codecs that can; by others one after the other.

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
    """A compressor that decodes what P peers sent of one tensor faster than what each of them sent alone."""

    def decode_all(self, parts_P: Sequence[Parts], shape: Size, moment: CodecContext) -> Tensor:
        """(P, *shape) float32. Raises ValueError when one of them cannot be decoded."""
        ...


def decode_all(codec: Compressor, parts_P: Sequence[Parts], shape: Size, moment: CodecContext) -> Tensor:
    """(P, *shape) float32 by any codec; P is at least 1. Raises ValueError as it does."""
    if isinstance(codec, BatchDecoder):
        return codec.decode_all(parts_P, shape, moment)
    return torch.stack([codec.decode(parts, shape, moment).float() for parts in parts_P])
