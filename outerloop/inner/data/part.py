"""The part of one rank in the batches of its island: all ranks draw the same windows, and each keeps its share."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from outerloop.inner.data.corpus import Stream


class Part:
    """The stream of rank r of R: windows r B/R .. (r + 1) B/R of each batch of B. R divides B.

    The mean of the ranks' mean gradients is the gradient of the whole batch, so an island trains on the same batches
    as a single process, whatever its number of ranks.
    """

    def __init__(self, stream: Stream, *, rank: int, ranks: int) -> None:
        self.stream, self.rank, self.ranks = stream, rank, ranks

    def next(self) -> Tensor:
        """Return the next windows of this rank: (batch / ranks, seq_len + 1) int64."""
        return self.stream.next().chunk(self.ranks)[self.rank]

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the island, which is the same on all its ranks."""
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at a position returned by `state_dict`."""
        self.stream.load_state_dict(state)
