"""Strikes against peers whose payloads cannot be used: they decide for how many rounds a peer is excluded.

    a loss (a rejected payload, or a pair that does not count)    one more strike
    a payload that proves unusable when it is applied             two more, because a good payload has just been counted
    a good payload                                                one strike fewer

A peer that gets a strike in round r, and then has k strikes, is excluded in the rounds before r + min(2^k, MAX_ROUNDS),
or for longer if an earlier exclusion is still running. So a peer that seldom fails misses few rounds, and only one that
fails most of the time is excluded for long. A restart clears the strikes.
"""

from __future__ import annotations

from collections import Counter

MAX_ROUNDS = 64
LOSS, UNUSABLE = 1, 2
"""Number of strikes for a loss, and for a payload that proves unusable after it was counted as good."""


class Strikes:
    """The strikes of each peer, and the round in which its exclusion ends."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._ends: dict[str, int] = {}

    def add(self, peer: str, count: int, *, number: int) -> None:
        """Add strikes to `peer` in round `number`. A running exclusion is not shortened."""
        self._counts[peer] += count
        self._ends[peer] = max(self.end(peer), number + min(2 ** self._counts[peer], MAX_ROUNDS))

    def remove_one(self, peer: str) -> None:
        """Remove one strike of `peer`, if it has any. A running exclusion is not shortened."""
        self._counts[peer] = max(0, self._counts[peer] - 1)

    def end(self, peer: str) -> int:
        """Return the first round in which `peer` is not excluded; 0 if it was never excluded."""
        return self._ends.get(peer, 0)

    def excludes(self, peer: str, *, number: int) -> bool:
        """Return whether `peer` is excluded in round `number`."""
        return number < self.end(peer)
