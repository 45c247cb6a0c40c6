"""End a run whose replicas must be equal: the hash of the slow weights that most peers show is the run's.

    all meet:      each shows the hash of its slow weights, or nothing that can be read
    most alike     they hand in their model, and name who shows another hash or none
    the minority   ends with a line of its own, and hands in nothing
    no majority    each hands in its model first; then it tells that they differ, since nobody can know whose is right

So one peer that lies about its weights, or falls silent, neither ends the others' run nor keeps their model from them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from outerloop.beginning import Standing, standing_in
from outerloop.loop import OuterLoop
from outerloop.types import Contribution, UserError

HASH = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True)
class Ending:
    """What the peers show at the end: peer -> hash of its slow weights, empty for nothing that can be read."""

    own: str
    shown: Mapping[str, str]

    @property
    def most(self) -> str:
        """The hash that more than half of those show who show any; empty where none is."""
        counts = Counter(filter(None, self.shown.values()))
        slow, peers = counts.most_common(1)[0]
        return slow if 2 * peers > counts.total() else ""

    @property
    def outvoted(self) -> str:
        """That most peers hold other weights than this one, in one line; empty where they do not."""
        if self.most in ("", self.shown[self.own]):
            return ""
        return (
            f"this peer ended with slow weights {self.shown[self.own]}, and most peers with {self.most}: theirs are the"
            f" model of the run, those of this machine are not handed in; all: {dict(self.shown)}"
        )

    @property
    def parted(self) -> str:
        """That no hash is that of most peers, in one line; empty where one is."""
        if self.most:
            return ""
        return (
            "the peers ended with different slow weights, and nobody can know whose are right; each machine has handed"
            f" in its own: {dict(self.shown)}"
        )

    @property
    def odd(self) -> list[str]:
        """One line for each peer that shows another hash than most, or none."""
        told = {peer: slow or "nothing that can be read" for peer, slow in self.shown.items() if slow != self.most}
        return [f"{peer} shows {slow} at the end, most peers {self.most}" for peer, slow in told.items() if self.most]


def ending_of(outer: OuterLoop) -> Ending:
    """Return what all peers show at the end. All peers must call it. Raises RoundFailed."""
    own = Standing.of(outer)
    met = outer.meet(json.dumps(own.to_map()).encode())
    return Ending(outer.exchange.peer, {one.peer: shown_by(one) for one in met} | {outer.exchange.peer: own.slow})


def shown_by(one: Contribution) -> str:
    """Return the hash of the slow weights that a peer shows; empty when its message holds none."""
    try:
        slow = standing_in(one).slow
    except UserError:
        return ""
    return slow if HASH.fullmatch(slow) else ""
