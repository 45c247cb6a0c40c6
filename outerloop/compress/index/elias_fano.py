"""Elias-Fano code of kept positions: 8 bits each at 64 of 4096, and every row's size known beforehand.

    low = floor(log2(chunk / k)) low bits of every position as they are; the high parts as unary gaps:
    (position >> low) - (position before >> low) zeros, a one;  zeros up to k + ((chunk - 1) >> low) bits

k (low + 1) + ((chunk - 1) >> low) bits a row, filled up to bytes: 9 % above what is possible at 64 of 4096, 10 % at
128. Any row can be read without the ones before it. The layout is in kernels/positions.py (Elias 1974; Fano 1971).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from outerloop.compress.index.checked import decoded
from outerloop.kernels.positions import elias_fano_decode, elias_fano_encode
from outerloop.kernels.rows import Rows


class EliasFano:
    """Half a bit an entry more than Rice, for sizes that do not depend on the positions."""

    def encode(self, position_M: Tensor, rows: Rows) -> Tensor:
        """(M,) int32 -> (B,) uint8. Raises ValueError on positions that do not ascend strictly inside their chunk."""
        return elias_fano_encode(position_M, rows.count, rows.chunk, rows.k)

    def decode(self, bytes_P: Sequence[Tensor], rows: Rows) -> Tensor:
        """(B,) uint8 of P peers -> (P, M) int32. Raises ValueError on bytes that encode never gives."""
        return decoded(elias_fano_decode, bytes_P, rows)
