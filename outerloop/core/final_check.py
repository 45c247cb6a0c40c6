"""End a run whose replicas must be equal. The majority decides which slow weights are those of the run.

    reports        every peer sends the hash of its slow weights; an unreadable message counts as no hash
    majority       if most of the peers that report a hash report the same one, these peers export their model, and log
                   the peers that report a different hash or none
    minority       a peer with a different hash exports nothing and raises Outvoted, but only if the peers that report
                   the most common hash are more than half of all peers of the last rounds. So a few peers that end
                   together cannot suppress another peer's model
    no majority    every peer exports its own model, then ends with an error, because no model is known to be right

So one peer that lies about its weights, or stops responding, cannot end the other peers' run or suppress their model.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from outerloop.core.initial_state import Standing, standing_in
from outerloop.core.outer_loop import OuterLoop
from outerloop.types import Contribution, UserError

HASH = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True)
class FinalCheck:
    """The hashes that the peers report at the end of the run.

    own: name of this peer.
    shown: peer -> hash of its slow weights, empty if its message is unreadable.
    peers: number of peers, including those that did not report.
    """

    own: str
    shown: Mapping[str, str]
    peers: int

    @property
    def most(self) -> str:
        """Hash reported by more than half of the peers that report one, or an empty string."""
        counts = Counter(filter(None, self.shown.values()))
        slow, peers = counts.most_common(1)[0]
        return slow if 2 * peers > counts.total() else ""

    @property
    def outvoted(self) -> str:
        """One line stating that most peers hold equal weights but this peer holds different ones; otherwise empty."""
        showing = list(self.shown.values()).count(self.most)
        if self.most in ("", self.shown[self.own]) or 2 * showing <= self.peers:
            return ""
        return (
            f"this peer ended with slow weights {self.shown[self.own]}, and most peers with {self.most}: their weights"
            f" are the model of the run, and this machine's weights are not exported; all: {dict(self.shown)}"
        )

    @property
    def divergence(self) -> str:
        """One line stating that it is not known which hash most peers have; empty if it is known."""
        if self.outvoted or self.shown[self.own] == self.most:
            return ""
        return (
            f"the peers ended with different slow weights, and too few of {self.peers} peers reported theirs to know"
            f" whose are right; each machine has exported its own: {dict(self.shown)}"
        )

    @property
    def odd(self) -> list[str]:
        """One line for each peer that reports no hash, or a different hash than most peers."""
        if self.divergence:
            return []
        told = {peer: slow or "nothing readable" for peer, slow in self.shown.items() if slow != self.most}
        return [f"{peer} reports {slow} at the end, and most peers report {self.most}" for peer, slow in told.items()]


def ending_of(outer: OuterLoop) -> FinalCheck:
    """Return the hashes that all peers report at the end. All peers must call this.

    Raises RoundFailed if the exchange of hashes fails.
    """
    own = Standing.of(outer)
    met = outer.all_gather(json.dumps(own.to_map()).encode())
    shown = {one.peer: shown_by(one) for one in met} | {outer.exchange.peer: own.slow}
    last = max(outer.verifier.last_seen.values(), default=0)
    return FinalCheck(outer.exchange.peer, shown, outer.verifier.known_peers(shown, last))


def shown_by(one: Contribution) -> str:
    """Return the hash of the slow weights that a peer reports; empty if its message contains none."""
    try:
        slow = standing_in(one).slow
    except UserError:
        return ""
    return slow if HASH.fullmatch(slow) else ""
