"""Decide which text is held out for validation, and which part of the rest each worker trains on.

Every rule is a pure function of names and sizes, so workers agree without communication. All ranks of an island read
the same windows, and each rank keeps its part of the batch.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from torch import Tensor

from outerloop.inner.data.corpus import Stream, notes_of

HELD_OUT = 0.05
"""Share of a corpus that is held out for validation."""


def is_held_out(key: bytes) -> bool:
    """Return whether `key` is held out for validation. Its hash decides: about one key in twenty is held out."""
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big") < HELD_OUT * 2**64


def training_length(tokens: int) -> int:
    """Return the number of training tokens, the first 95 % of `tokens`. The last 5 % are for validation."""
    return tokens - int(tokens * HELD_OUT)


def rank_span(tokens: int, rank: int, size: int) -> slice:
    """Return worker `rank`'s contiguous span of the tokens. The workers' spans cover all tokens without overlap."""
    return slice(rank * tokens // size, (rank + 1) * tokens // size)


def balance_by_bytes(bytes_by_name: Mapping[str, int], size: int) -> list[list[str]]:
    """Assign text files or packages to workers. Return the names assigned to each worker.

    Each file or package, largest first, goes to the worker with the fewest bytes so far.
    """
    names_by_rank: list[list[str]] = [[] for _ in range(size)]
    loads = [(0, rank) for rank in range(size)]
    for name in sorted(bytes_by_name, key=lambda name: (-bytes_by_name[name], name)):
        load, rank = heapq.heappop(loads)
        names_by_rank[rank].append(name)
        heapq.heappush(loads, (load + bytes_by_name[name], rank))
    return names_by_rank


class RankStream:
    """One rank's part of a stream: chunk `rank` of each batch, split into `ranks` equal chunks.

    `ranks` must divide the batch size. The mean of the ranks' gradients is then the gradient of the whole batch, so an
    island trains as a single process would.
    """

    def __init__(self, stream: Stream, *, rank: int, ranks: int) -> None:
        self.stream, self.rank, self.ranks = stream, rank, ranks

    @property
    def notes(self) -> Sequence[str]:
        return notes_of(self.stream)

    def next(self) -> Tensor:
        """Return the next windows of this rank: (batch / ranks, seq_len + 1) int64."""
        return self.stream.next().chunk(self.ranks)[self.rank]

    def state_dict(self) -> dict[str, Any]:
        """Return the island's position in the stream, which is the same on all ranks."""
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at a position returned by `state_dict`."""
        self.stream.load_state_dict(state)
