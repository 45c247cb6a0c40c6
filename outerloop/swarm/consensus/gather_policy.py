"""When the leader of a round closes the gather: everybody who is in by then takes part, the others go on to the next.

    all in         at once: of those that may take part
    grace over     what `quorum` says of the roster is in:
                       "majority"   more than half of it
                       "min_peers"  no more than min_fraction of it and min_peers
                       "all"        all of it: a peer that is gone stops the run; one that is expelled does not
    deadline over  min_peers are in; with "all", as before

Besides, min_peers and min_fraction of the roster must be in at the end of the grace whatever the quorum. Grace and
deadline are events that the leader's own clock sends. Below min_peers nothing ever closes. This is about payloads: what
closes is decided by a majority of the roster in any case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class GatherPolicy:
    """`min_fraction` of the roster, 0 to 1; `quorum` as above."""

    min_peers: int
    min_fraction: float
    quorum: Literal["majority", "all", "min_peers"] = "min_peers"

    def __post_init__(self) -> None:
        if self.min_peers < 1 or not 0 <= self.min_fraction <= 1:
            raise ValueError(f"min_peers is 1 or more and min_fraction 0 to 1; came {self}")

    def closes(self, held: int, roster: int, *, awaited: int, grace: bool, deadline: bool) -> bool:
        """Whether `held` payloads of a roster of so many, of which `awaited` may be counted, are enough now."""
        return held >= self.needed(roster, awaited=awaited, grace=grace, deadline=deadline)

    def needed(self, roster: int, *, awaited: int, grace: bool, deadline: bool) -> int:
        """How many payloads are enough now. More than the roster has when it is smaller than min_peers."""
        if self.quorum == "all" or not (grace or deadline):
            return max(self.min_peers, awaited)
        if deadline:
            return self.min_peers
        quorum = roster // 2 + 1 if self.quorum == "majority" else 0
        return max(self.min_peers, quorum, -int(-self.min_fraction * roster // 1))  # rounded up
