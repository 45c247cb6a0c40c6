"""End a run whose replicas must be equal: the hash of the slow weights that most peers show is the run's.

    all meet:      each shows the hash of its slow weights, or nothing that can be read
    most alike     of those that show one: they hand in their model, and name who shows another hash or none
    the minority   ends with a line of its own, and hands in nothing, where more than half of all peers of the last
                   rounds show one other hash: a few that come to the end together do not keep anybody's model back
    no majority    every peer hands in its own model, then ends with an error (nobody can know whose is right)

So one peer that lies about its weights, or falls silent, neither ends the others' run nor keeps their model from them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from outerloop.core.initial_state import Standing, standing_in
from outerloop.core.loop import OuterLoop
from outerloop.types import Contribution, UserError

HASH = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True)
class FinalCheck:
    """What the peers show at the end: peer -> hash of its slow weights, empty for nothing that can be read.

    `own`: this peer. `peers`: how many there are, with those that do not come.
    """

    own: str
    shown: Mapping[str, str]
    peers: int

    @property
    def most(self) -> str:
        """The hash that more than half of those show who show any; empty where none is."""
        counts = Counter(filter(None, self.shown.values()))
        slow, peers = counts.most_common(1)[0]
        return slow if 2 * peers > counts.total() else ""

    @property
    def outvoted(self) -> str:
        """That most peers hold other weights than this one, in one line; empty where they do not."""
        showing = list(self.shown.values()).count(self.most)
        if self.most in ("", self.shown[self.own]) or 2 * showing <= self.peers:
            return ""
        return (
            f"this peer ended with slow weights {self.shown[self.own]}, and most peers with {self.most}: theirs are the"
            f" model of the run, those of this machine are not handed in; all: {dict(self.shown)}"
        )

    @property
    def divergence(self) -> str:
        """That nobody can know which hash is that of most peers, in one line; empty where this peer can."""
        if self.outvoted or self.shown[self.own] == self.most:
            return ""
        return (
            f"the peers ended with different slow weights, and of {self.peers} too few showed theirs to know whose are"
            f" right; each machine has handed in its own: {dict(self.shown)}"
        )

    @property
    def odd(self) -> list[str]:
        """One line for each peer that shows another hash than most, or none."""
        if self.divergence:
            return []
        told = {peer: slow or "nothing that can be read" for peer, slow in self.shown.items() if slow != self.most}
        return [f"{peer} shows {slow} at the end, most peers {self.most}" for peer, slow in told.items()]


def ending_of(outer: OuterLoop) -> FinalCheck:
    """Return what all peers show at the end. All peers must call it. Raises RoundFailed."""
    own = Standing.of(outer)
    met = outer.meet(json.dumps(own.to_map()).encode())
    shown = {one.peer: shown_by(one) for one in met} | {outer.exchange.peer: own.slow}
    last = max(outer.judge.seen.values(), default=0)
    return FinalCheck(outer.exchange.peer, shown, outer.judge.known(shown, last))


def shown_by(one: Contribution) -> str:
    """Return the hash of the slow weights that a peer shows; empty when its message holds none."""
    try:
        slow = standing_in(one).slow
    except UserError:
        return ""
    return slow if HASH.fullmatch(slow) else ""
