"""Define the faults of bench_faults.py, their frequencies and their durations."""

from __future__ import annotations

import random
from collections.abc import Collection

KINDS = {
    "kill": 12,
    "freeze": 2,
    "interrupt": 1,
    "corrupt": 1,
    "garbled": 1,
    "oversized": 1,
    "slow": 1,
    "join": 1,
}
"""Fault -> number of cards with this fault in a full deck of twenty cards."""
LASTS_S = {
    "kill": (2.0, 10.0),
    "freeze": (5.0, 40.0),
    "interrupt": (2.0, 10.0),
    **dict.fromkeys(("corrupt", "garbled", "oversized", "slow"), (10.0, 30.0)),
}
"""Fault -> its shortest and longest duration in seconds."""
MISBEHAVIOURS = ("corrupt", "garbled", "oversized", "slow")


class Deck:
    """A shuffled deck of fault kinds, refilled when empty, so that frequencies hold even after few draws."""

    def __init__(self, kinds: Collection[str], rng: random.Random) -> None:
        self._kinds, self._random = list(kinds), rng
        self._left: list[str] = []

    def draw(self) -> str:
        """Return the next fault."""
        if not self._left:
            self._left = [kind for kind in self._kinds for _ in range(KINDS[kind])]
            self._random.shuffle(self._left)
        return self._left.pop()
