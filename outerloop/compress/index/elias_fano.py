"""Elias-Fano code for kept positions: 8 bits per position if 64 of 4096 are kept, and a size known in advance.

    low = floor(log2(chunk / k));  first, the `low` lowest bits of every position;  then the gaps between high parts:
    for each position, (position >> low) - (previous position >> low) zeros and a one;  then zeros, until the gaps have
    k + ((chunk - 1) >> low) bits

A row (one chunk) takes k (low + 1) + ((chunk - 1) >> low) bits, padded to bytes: 9 % above the entropy bound if 64 of
4096 are kept, 10 % if 128 are kept. Any row can be read without the rows before it. The layout is described in
kernels/elias_fano.py (Elias 1974; Fano 1971).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from outerloop.compress.index import decoded
from outerloop.kernels.elias_fano import elias_fano_decode, elias_fano_encode
from outerloop.kernels.select import Rows


class EliasFano:
    """Elias-Fano index: half a bit more per position than Rice, but the size does not depend on the positions."""

    def encode(self, position_M: Tensor, rows: Rows) -> Tensor:
        """Encode M kept positions (int32) to bytes (uint8). Raises ValueError unless they ascend within each chunk."""
        return elias_fano_encode(position_M, rows.count, rows.chunk, rows.k)

    def decode(self, bytes_P: Sequence[Tensor], rows: Rows) -> Tensor:
        """Decode the bytes of P peers to kept positions, (P, M) int32. Raises ValueError on invalid bytes."""
        return decoded(elias_fano_decode, bytes_P, rows)
