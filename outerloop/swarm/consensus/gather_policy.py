"""The rule by which the leader of a round closes the gather. Peers whose payloads have arrived take part in this round;
the others continue with the next one.

    all arrived    closes at once when the payloads of all roster peers that may take part have arrived
    grace over     closes when the payloads of the fraction of the roster that `quorum` names have arrived:
                       "majority"   more than half of it
                       "min_peers"  only min_fraction of it and min_peers
                       "all"        all of it: a peer that is gone stops the run, an expelled one does not
    deadline over  closes when min_peers payloads have arrived; with "all", as before

At the end of the grace period, the payloads of min_peers and of min_fraction of the roster are needed with any quorum.
Grace and deadline are events from the leader's own clock. Below min_peers the gather never closes. All of this is about
payloads: the commit itself is always decided by a majority of the roster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class GatherPolicy:
    """The settings of the rule. `min_fraction`: of the roster, 0 to 1. `quorum`: as described above."""

    min_peers: int
    min_fraction: float
    quorum: Literal["majority", "all", "min_peers"] = "min_peers"

    def __post_init__(self) -> None:
        if self.min_peers < 1 or not 0 <= self.min_fraction <= 1:
            raise ValueError(f"min_peers is 1 or more and min_fraction 0 to 1; got {self}")

    def closes(self, stored: int, roster: int, *, awaited: int, grace: bool, deadline: bool) -> bool:
        """Return whether `stored` payloads are enough now, for a `roster` of which `awaited` peers may be counted.

        All three are numbers of peers.
        """
        return stored >= self.needed(roster, awaited=awaited, grace=grace, deadline=deadline)

    def needed(self, roster: int, *, awaited: int, grace: bool, deadline: bool) -> int:
        """Return how many payloads are enough now. May exceed the roster if that is smaller than min_peers."""
        if self.quorum == "all" or not (grace or deadline):
            return max(self.min_peers, awaited)
        if deadline:
            return self.min_peers
        quorum = roster // 2 + 1 if self.quorum == "majority" else 0
        return max(self.min_peers, quorum, -int(-self.min_fraction * roster // 1))  # rounded up
