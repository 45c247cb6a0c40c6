"""When the leader of a round closes the gather: everybody who is in by then takes part, the others go on to the next.

    all in                                                 at once
    grace over     min_fraction of the roster and min_peers are in
    deadline over  min_peers are in

Grace and deadline are events that the leader's own clock sends. Below min_peers nothing ever closes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Closing:
    """`min_fraction` of the roster, 0 to 1."""

    min_peers: int
    min_fraction: float

    def __post_init__(self) -> None:
        if self.min_peers < 1 or not 0 <= self.min_fraction <= 1:
            raise ValueError(f"min_peers is 1 or more and min_fraction 0 to 1; came {self}")

    def closes(self, held: int, roster: int, *, grace: bool, deadline: bool) -> bool:
        """Whether `held` payloads of a roster of so many are enough now."""
        return held >= self.needed(roster, grace=grace, deadline=deadline)

    def needed(self, roster: int, *, grace: bool, deadline: bool) -> int:
        """How many payloads are enough now. More than the roster has when it is smaller than min_peers."""
        if deadline:
            return self.min_peers
        fraction = self.min_fraction if grace else 1
        return max(self.min_peers, -int(-fraction * roster // 1))  # rounded up
