"""Record when each peer reached each of the last rounds, so that a late peer is visible.

    late_s(peer, round) = ready_s(peer, round) − min over peers of ready_s(peer, round)

ready_s is the time at which a peer's payload was ready. For a run directory it is exact: the end of the landing minus
the seconds of landing and waiting. For a swarm it is the time at which the peer wrote the first record with this round
that was read here, which may be 20 s later.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from outerloop.watch.model.page import Cell, TimelineTable

Ready = float | Literal["failed", "absent"]
"""Time in seconds at which a payload was ready, or why there is no such time: the round failed, or left it out."""
MAX_ROUNDS = 50
"""Number of rounds that the timeline shows."""


@dataclass
class Timeline:
    """The last rounds of all peers. `rounds`: round -> peer -> `ready_s`, or why there is no such time."""

    rounds: dict[int, dict[str, Ready]] = field(default_factory=dict)

    def add(self, peer: str, round_number: int, ready: Ready) -> None:
        """Record one peer's round, and drop the oldest round if there are more than MAX_ROUNDS."""
        if len(self.rounds) >= MAX_ROUNDS and round_number < min(self.rounds):
            return
        self.rounds.setdefault(round_number, {})[peer] = ready
        if len(self.rounds) > MAX_ROUNDS:
            del self.rounds[min(self.rounds)]

    def drop_after(self, round_number: int) -> None:
        """Drop all rounds after this one."""
        self.rounds = {number: peers for number, peers in self.rounds.items() if number <= round_number}

    def page(self, peers: list[str]) -> TimelineTable:
        """Return one row for each of these peers, in this order."""
        rounds = sorted(self.rounds)
        times = [self.rounds[number] for number in rounds]
        first_s = [min((ready for ready in peers.values() if isinstance(ready, float)), default=0.0) for peers in times]
        cells = [
            [lateness(ready.get(peer), first) for ready, first in zip(times, first_s, strict=True)] for peer in peers
        ]
        return {"rounds": rounds, "cells": cells}


def lateness(ready: Ready | None, first_s: float) -> Cell:
    """Return how many seconds later than the first peer a peer was ready, to 0.01 s, or why there is no such number.

    `first_s`: time at which the first peer was ready.
    """
    return round(ready - first_s, 2) if isinstance(ready, float) else ready


def last_late_s(cells: list[Cell]) -> float | None:
    """Return the newest known lateness in a row of the timeline, or None if there is none."""
    return next((cell for cell in reversed(cells) if isinstance(cell, float)), None)
