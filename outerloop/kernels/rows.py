"""Cut a tensor into chunks in memory order and count the kept values per chunk. The last may be shorter."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """The division of `count` values into chunks. A full chunk keeps `k` values, the ragged last one the same share.

    Kept values of all chunks are concatenated: those of row r start at r * k.
    """

    count: int
    chunk: int
    k: int

    @property
    def whole(self) -> int:
        """Number of full chunks."""
        return self.count // self.chunk

    @property
    def rest(self) -> int:
        """Length of the ragged last chunk, or 0."""
        return self.count % self.chunk

    @property
    def chunks(self) -> int:
        """Number of all chunks."""
        return -(-self.count // self.chunk)

    @property
    def kept_of_rest(self) -> int:
        """Number kept of the ragged chunk: k / chunk of its length, rounded up."""
        return -(-self.k * self.rest // self.chunk)

    @property
    def kept(self) -> int:
        """Number kept of all chunks."""
        return self.whole * self.k + self.kept_of_rest


def split_rows(x_N: Tensor, length: int) -> list[Tensor]:
    """Split (N,) into the full rows (C, length) and the ragged last row (1, rest), if any. Views without padding."""
    whole = x_N.numel() // length * length
    rows = [x_N[:whole].view(-1, length), x_N[whole:].view(1, -1)]
    return [row for row in rows if row.numel()]


def split_rows_of_levels(level_G2: Tensor, count: int, length: int) -> list[Tensor]:
    """Return the levels of each item of `split_rows`."""
    whole = count // length
    return [level for level in (level_G2[:whole], level_G2[whole:]) if level.numel()]
