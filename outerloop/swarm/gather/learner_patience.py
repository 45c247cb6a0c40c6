"""Decide for which learners a round waits, so that learners whose payloads do not arrive cannot slow down every round.

A learner is a peer outside the roster that asked to be counted (consensus/roster_change.py). A round waits for its
payload, at most until the end of the grace period. Let k be the number of rounds in a row in which the learner asked,
and this peer did not receive its payload. This peer then waits only in rounds whose number is divisible by 2^k, with k
at most MAX_DOUBLINGS. A payload that arrives sets k to 0, so a learner that was late for a while is counted again.

Each peer has its own k for its own timers; the peers need not agree.
"""

from __future__ import annotations

from collections.abc import Set

from outerloop.swarm.validation import MAX_PEERS

MAX_DOUBLINGS = 6
"""Maximum k: every 64th round waits."""


class LearnerPatience:
    """Counts, for each of at most MAX_PEERS learners, the rounds in a row in which its payload did not arrive."""

    def __init__(self) -> None:
        self._missed: dict[str, int] = {}
        self._asked: Set[str] = frozenset()
        self._arrived: Set[str] = frozenset()

    def observe(self, asked: Set[str], arrived: Set[str]) -> None:
        """Record who has asked to be counted in the current round, and whose payloads have arrived."""
        self._asked, self._arrived = asked, arrived

    def begin_round(self) -> None:
        """Count the last observation as the result of the round that has ended."""
        for peer in self._asked & self._arrived:
            self._missed.pop(peer, None)
        for peer in self._asked - self._arrived:
            self._missed[peer] = self._missed.pop(peer, 0) + 1  # moves it to the end of the dictionary
        while len(self._missed) > MAX_PEERS:
            del self._missed[next(iter(self._missed))]
        self._asked = self._arrived = frozenset()

    def awaited(self, asked: Set[str], number: int) -> set[str]:
        """Return those of the learners that asked for whose payloads round `number` waits."""
        return {peer for peer in asked if number % (1 << min(self._missed.get(peer, 0), MAX_DOUBLINGS)) == 0}
