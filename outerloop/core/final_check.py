"""Compare the final slow weights in a run whose replicas must be equal. The majority decides which ones are right.

    reports        every peer sends the hash of its slow weights; an unreadable message counts as no hash
    majority       if most of the peers that report a hash report the same one, these peers export their model, and log
                   the peers that report a different hash or none
    minority       a peer with a different hash exports nothing and raises Outvoted, but only if the peers that report
                   the most common hash are more than half of all peers of the last rounds. So a few peers that reach
                   the end together cannot prevent another peer from exporting its model
    no majority    every peer exports its own model, then ends with an error, because no model is known to be right

So one peer that lies about its weights, or stops responding, cannot end the other peers' run with an error, and cannot
prevent them from exporting their model.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from outerloop.core.initial_state import StartPosition, position_in
from outerloop.core.outer_loop import OuterLoop
from outerloop.types import Contribution, UserError

HASH = re.compile("[0-9a-f]{16}")


@dataclass(frozen=True)
class FinalCheck:
    """The hashes of the slow weights that peers report at the end of the run.

    own: name of this peer.
    shown: peer -> hash of its slow weights, or "" if its message is unreadable.
    peers: number of peers, including those that did not report.
    """

    own: str
    shown: Mapping[str, str]
    peers: int

    @property
    def majority_hash(self) -> str:
        """Hash reported by more than half of the peers that report a hash, or "" if there is no majority."""
        counts = Counter(filter(None, self.shown.values()))
        slow, peers = counts.most_common(1)[0]
        return slow if 2 * peers > counts.total() else ""

    @property
    def outvoted_error(self) -> str:
        """Error message if more than half of all peers hold equal weights and this peer holds others; otherwise ""."""
        showing = list(self.shown.values()).count(self.majority_hash)
        if self.majority_hash in ("", self.shown[self.own]) or 2 * showing <= self.peers:
            return ""
        return (
            f"this peer finished with slow weights {self.shown[self.own]}, but most peers with {self.majority_hash}:"
            " their weights are the model of the run, so this machine exports nothing; all hashes:"
            f" {dict(self.shown)}"
        )

    @property
    def divergence_error(self) -> str:
        """Error message if this peer's weights are neither confirmed nor outvoted by a majority; otherwise ""."""
        if self.outvoted_error or self.shown[self.own] == self.majority_hash:
            return ""
        return (
            f"the peers finished with different slow weights, and no hash was reported by most of the {self.peers}"
            f" peers, so the right weights are unknown; each machine has exported its own: {dict(self.shown)}"
        )

    @property
    def minority_lines(self) -> list[str]:
        """One line for each peer that reports no hash, or whose hash differs from that of most peers."""
        if self.divergence_error:
            return []
        most = self.majority_hash
        odd = {peer: slow or "nothing readable" for peer, slow in self.shown.items() if slow != most}
        return [f"{peer} reports {slow} at the end, but most peers report {most}" for peer, slow in odd.items()]


def gather_final_hashes(outer: OuterLoop) -> FinalCheck:
    """Gather the hashes of all peers' final slow weights. All peers must call this.

    Raises RoundFailed if the all-gather fails.
    """
    own = StartPosition.of(outer)
    met = outer.all_gather(json.dumps(own.to_map()).encode())
    shown = {one.peer: shown_by(one) for one in met} | {outer.exchange.peer: own.slow}
    last = max(outer.verifier.last_seen.values(), default=0)
    return FinalCheck(outer.exchange.peer, shown, outer.verifier.known_peers(shown, last))


def shown_by(one: Contribution) -> str:
    """Return the hash of the slow weights in a peer's message, or "" if the message contains no valid hash."""
    try:
        slow = position_in(one).slow
    except UserError:
        return ""
    return slow if HASH.fullmatch(slow) else ""
