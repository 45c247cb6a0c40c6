"""Decide which text is held out for validation, and which worker trains on which part of the rest.

Every rule is a pure function of names and sizes, so workers agree without communication. Within an island, all ranks
draw the same windows, and each keeps its part of the batch.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from torch import Tensor

from outerloop.inner.data.corpus import Stream

HELD_OUT = 0.05
"""Share of a corpus that is held out for validation."""


def is_held_out(key: bytes) -> bool:
    """Return whether a key is held out. One key in twenty is held out; this depends only on the hash of the key."""
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big") < HELD_OUT * 2**64


def training_length(tokens: int) -> int:
    """Return how many of the tokens are for training: the first 95 %. The last 5 % are for validation."""
    return tokens - int(tokens * HELD_OUT)


def rank_span(tokens: int, rank: int, size: int) -> slice:
    """Return the contiguous part of worker `rank`. The parts of all workers cover all tokens without overlap."""
    return slice(rank * tokens // size, (rank + 1) * tokens // size)


def balance_by_bytes(bytes_by_name: Mapping[str, int], size: int) -> list[list[str]]:
    """Return the names of the text files or packages of each worker.

    Files or packages are assigned in order of size, largest first, each to the worker with the fewest bytes so far.
    """
    names_by_rank: list[list[str]] = [[] for _ in range(size)]
    loads = [(0, rank) for rank in range(size)]
    for name in sorted(bytes_by_name, key=lambda name: (-bytes_by_name[name], name)):
        load, rank = heapq.heappop(loads)
        names_by_rank[rank].append(name)
        heapq.heappush(loads, (load + bytes_by_name[name], rank))
    return names_by_rank


class RankStream:
    """The stream of rank r of R ranks: windows r B/R .. (r + 1) B/R of each batch of B windows. R must divide B.

    The mean of the ranks' mean gradients is the gradient of the whole batch. So an island trains as a single process
    would, whatever its number of ranks.
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
