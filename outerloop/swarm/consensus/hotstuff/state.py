"""The volatile state of one peer in a round of HotStuff-2. What must survive a crash is in ../state.py (HardState)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from outerloop.swarm.consensus.hotstuff.messages import NewView
from outerloop.swarm.consensus.hotstuff.votes import PrepareCertificate, Proposal
from outerloop.swarm.consensus.round_state import RoundState


@dataclass(frozen=True)
class HotStuffState(RoundState):
    """One peer's volatile knowledge of the round. The reports belong to the round, the other fields to the view.

    reports     on a leader: the last report that each peer sent to this peer, for any view
    waited      on the leader: whether its wait for reports is over
    votes       on the leader: (phase, peer, signature) of each vote that other peers sent for its proposal
    prepared    on a follower: the verified certificate that the leader sent, until this peer has locked on it
    """

    reports: frozenset[tuple[str, NewView]] = frozenset()
    waited: bool = False
    votes: frozenset[tuple[str, str, bytes]] = frozenset()
    proposal: Proposal | None = None
    prepared: PrepareCertificate | None = None

    def in_another_view(self) -> HotStuffState:
        return replace(super().in_another_view(), waited=False, votes=frozenset(), prepared=None)

    def reports_of(self, view: int) -> dict[str, NewView]:
        """Return the reports for this view, keyed by peer."""
        return {peer: report for peer, report in self.reports if report.view == view}

    def with_report(self, sender: str, report: NewView) -> HotStuffState:
        others = frozenset((peer, report) for peer, report in self.reports if peer != sender)
        return replace(self, reports=others | {(sender, report)})

    def with_vote(self, phase: str, sender: str, signature: bytes) -> HotStuffState:
        """Return a copy with this vote, or this state if it already contains a vote of the peer for the phase.

        Without this check, a peer could add many votes: one key can make several valid signatures of a statement.
        """
        known = any((kind, peer) == (phase, sender) for kind, peer, _ in self.votes)
        return self if known else replace(self, votes=self.votes | {(phase, sender, signature)})

    def votes_of(self, phase: str) -> set[tuple[str, bytes]]:
        """Return (peer, signature) of each vote for this phase."""
        return {(peer, signature) for kind, peer, signature in self.votes if kind == phase}
