"""AXIS index: how the kept positions of a sparse payload are encoded. One code per file."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from outerloop.kernels.rows import Rows


class Index(Protocol):
    """A code for the kept positions of every chunk. Canonical: equal positions give equal bytes, and vice versa."""

    def encode(self, position_M: Tensor, rows: Rows) -> Tensor:
        """Encode (M,) int32 to (B,) uint8. Raises ValueError unless M = rows.kept ascend strictly in their chunk."""
        ...

    def decode(self, bytes_P: Sequence[Tensor], rows: Rows) -> Tensor:
        """Decode the bytes of P peers, (B,) uint8 each, to (P, M) int32.

        Raises ValueError on bytes that `encode` does not return for any positions.
        """
        ...
