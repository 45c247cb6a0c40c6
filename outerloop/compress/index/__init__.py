"""AXIS index: kept positions of a sparse payload <-> bytes. One code a file."""

from typing import Protocol

from torch import Tensor

from outerloop.kernels.rows import Rows


class Index(Protocol):
    """How the positions that every chunk keeps are written. Canonical: equal positions, equal bytes, and back."""

    def encode(self, position_M: Tensor, rows: Rows) -> Tensor:
        """(M,) int32 -> (B,) uint8. Raises ValueError unless the M = rows.kept ascend strictly inside their chunk."""
        ...

    def decode(self, byte_B: Tensor, rows: Rows) -> Tensor:
        """(B,) uint8 -> (M,) int32. Raises ValueError on bytes that `encode` does not give for any positions."""
        ...
