"""Golomb-Rice code of the gaps between kept positions: 7.52 bits each at 64 of 4096, 2 % above what is possible.

    gap = position - position before - 1  ->  gap >> b zeros, a one, the b low bits of gap

b follows from (chunk, k). Bits an entry of uniformly random positions, everything included, beside the bound
log2 C(4096, k) / k:

    k        8      16     32     64     128    256    512    1024
    Rice   10.34   9.44   8.49   7.52   6.52   5.49   4.43   3.30
    bound  10.09   9.23   8.32   7.36   6.38   5.38   4.34   3.24

Rows lie in lanes of about 1024 entries, each with its size in front, so that lanes are decoded in parallel; the size
depends on the positions. The layout, and how b is found, are in kernels/positions.py (Rice 1979; Kiely 2004).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from outerloop.compress.index.checked import decoded
from outerloop.kernels.positions import rice_decode, rice_encode
from outerloop.kernels.rows import Rows


class Rice:
    """The smallest for up to half kept. From 38 % on, b is 0 and a row is its bit mask, one bit for each value."""

    def encode(self, position_M: Tensor, rows: Rows) -> Tensor:
        """(M,) int32 -> (B,) uint8. Raises ValueError on positions that do not ascend strictly inside their chunk."""
        return rice_encode(position_M, rows.count, rows.chunk, rows.k)

    def decode(self, bytes_P: Sequence[Tensor], rows: Rows) -> Tensor:
        """(B,) uint8 of P peers -> (P, M) int32. Raises ValueError on bytes that encode never gives."""
        return decoded(rice_decode, bytes_P, rows)
