"""Who gets what: which text is held out for validation, and which worker trains on the rest.

Every rule is a pure function of names and sizes, so workers that never speak to each other agree.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from hashlib import blake2b

HELD_OUT = 0.05
"""The part of a corpus that is kept for validation."""


def is_held_out(key: bytes) -> bool:
    """One key in twenty, by its hash: independent of the order, the machine and the other keys."""
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big") < HELD_OUT * 2**64


def training_length(tokens: int) -> int:
    """A split by position: the first 95 % train, the last 5 % validate."""
    return tokens - int(tokens * HELD_OUT)


def span(tokens: int, rank: int, size: int) -> slice:
    """The contiguous part of worker `rank`; the parts of all workers tile the whole."""
    return slice(rank * tokens // size, (rank + 1) * tokens // size)


def deal(bytes_by_name: Mapping[str, int], size: int) -> list[list[str]]:
    """Names to `size` workers: the largest first, each to the worker that holds least so far."""
    hands: list[list[str]] = [[] for _ in range(size)]
    loads = [(0, rank) for rank in range(size)]
    for name in sorted(bytes_by_name, key=lambda name: (-bytes_by_name[name], name)):
        load, rank = heapq.heappop(loads)
        hands[rank].append(name)
        heapq.heappush(loads, (load + bytes_by_name[name], rank))
    return hands
