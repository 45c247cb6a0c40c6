"""One rank's part of the batches of its island: all ranks draw the same windows, and each keeps its own."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from outerloop.inner.data.corpus import Stream


class Part:
    """Rank r of R takes windows r B/R .. (r + 1) B/R of each batch of B; R divides B.

    The mean of the ranks' mean gradients is the gradient of the whole batch, so an island of any number of ranks trains
    on what a single process would.
    """

    def __init__(self, stream: Stream, *, rank: int, ranks: int) -> None:
        self.stream, self.rank, self.ranks = stream, rank, ranks

    def next(self) -> Tensor:
        """(batch / ranks, seq_len + 1) int64."""
        return self.stream.next().chunk(self.ranks)[self.rank]

    def state_dict(self) -> dict[str, Any]:
        """The position of the island, the same on all its ranks."""
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse."""
        self.stream.load_state_dict(state)
