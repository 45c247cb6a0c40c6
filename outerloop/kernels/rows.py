"""A tensor cut into chunks as it lies in memory, the last one may be shorter, and how many values each chunk keeps."""

from __future__ import annotations

from dataclasses import dataclass


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
    def rows(self) -> int:
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
