"""Decide which text is held out for validation, and which worker trains on which part of the rest.

Every rule is a pure function of names and sizes, so workers agree without communication.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from hashlib import blake2b

HELD_OUT = 0.05
"""Share of a corpus that is held out for validation."""


def is_held_out(key: bytes) -> bool:
    """Return True for one key in twenty, by its hash: independent of order, machine and other keys."""
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big") < HELD_OUT * 2**64


def training_length(tokens: int) -> int:
    """Split by position: return the number of training tokens, the first 95 %. The last 5 % are for validation."""
    return tokens - int(tokens * HELD_OUT)


def span(tokens: int, rank: int, size: int) -> slice:
    """Return the contiguous part of worker `rank`. The parts of all workers cover all tokens without overlap."""
    return slice(rank * tokens // size, (rank + 1) * tokens // size)


def deal(bytes_by_name: Mapping[str, int], size: int) -> list[list[str]]:
    """Distribute names to `size` workers: the largest first, each to the worker with the fewest bytes so far."""
    hands: list[list[str]] = [[] for _ in range(size)]
    loads = [(0, rank) for rank in range(size)]
    for name in sorted(bytes_by_name, key=lambda name: (-bytes_by_name[name], name)):
        load, rank = heapq.heappop(loads)
        hands[rank].append(name)
        heapq.heappush(loads, (load + bytes_by_name[name], rank))
    return hands
