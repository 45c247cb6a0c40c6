"""Quorums: how many peers of a roster decide."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass


@dataclass(frozen=True)
class Quorum:
    """More than `numerator / denominator` of a roster. `name`: for messages to the user."""

    numerator: int
    denominator: int
    name: str

    def of(self, roster: Sized) -> int:
        """Return the number of peers that decide: the smallest one that is more than the fraction of the roster."""
        return len(roster) * self.numerator // self.denominator + 1

    def largest_roster(self, present: int) -> int:
        """Return the size of the largest roster in which `present` peers decide."""
        return (present * self.denominator - 1) // self.numerator


MAJORITY = Quorum(1, 2, "a majority")
"""More than half of a roster. Two majorities share a peer."""
TWO_THIRDS = Quorum(2, 3, "more than two thirds")
"""More than two thirds of a roster. If at most f = (n - 1) // 3 of its n peers lie: two such quorums share more than f
peers, so they share an honest one, and the honest peers are such a quorum by themselves."""
