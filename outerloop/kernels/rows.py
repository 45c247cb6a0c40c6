"""A tensor cut into chunks as it lies in memory, the last one may be shorter, and how many values each chunk keeps."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Rows:
    """`count` values in chunks of `chunk`, of which a whole one keeps `k` and the ragged last one the same share.

    Kept values of all chunks lie behind each other: row r keeps values r * k .. r * k + kept_of(r).
    """

    count: int
    chunk: int
    k: int

    @property
    def whole(self) -> int:
        """Chunks of full length."""
        return self.count // self.chunk

    @property
    def rest(self) -> int:
        """Length of the ragged last chunk, 0 without."""
        return self.count % self.chunk

    @property
    def chunks(self) -> int:
        """All chunks."""
        return -(-self.count // self.chunk)

    @property
    def kept_of_rest(self) -> int:
        """Kept of the ragged chunk: k / chunk of its length, rounded up."""
        return -(-self.k * self.rest // self.chunk)

    @property
    def kept(self) -> int:
        """Kept of all chunks."""
        return self.whole * self.k + self.kept_of_rest


def split_rows(x_N: Tensor, length: int) -> list[Tensor]:
    """(N,) -> the full rows (C, length) and, if there is a rest, the ragged last row (1, rest). Views, no padding."""
    whole = x_N.numel() // length * length
    rows = [x_N[:whole].view(-1, length), x_N[whole:].view(1, -1)]
    return [row for row in rows if row.numel()]


def split_rows_of_levels(level_G2: Tensor, count: int, length: int) -> list[Tensor]:
    """The levels that belong to each item of `split_rows`."""
    whole = count // length
    return [level for level in (level_G2[:whole], level_G2[whole:]) if level.numel()]
