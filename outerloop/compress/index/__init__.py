"""AXIS index: kept positions of a sparse payload <-> bytes. One code a file."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from outerloop.kernels.rows import Rows


class Index(Protocol):
    """How the positions that every chunk keeps are written. Canonical: equal positions, equal bytes, and back."""

    def encode(self, position_M: Tensor, rows: Rows) -> Tensor:
        """(M,) int32 -> (B,) uint8. Raises ValueError unless the M = rows.kept ascend strictly inside their chunk."""
        ...

    def decode(self, bytes_P: Sequence[Tensor], rows: Rows) -> Tensor:
        """What P peers sent, (B,) uint8 each -> (P, M) int32.

        Raises ValueError on bytes that `encode` does not give for any positions.
        """
        ...
