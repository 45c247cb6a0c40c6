"""The volatile state of one peer in a round of Paxos. What must survive a crash is in ../state.py (HardState)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from outerloop.swarm.consensus.messages import Promise
from outerloop.swarm.consensus.round_state import RoundState
from outerloop.swarm.consensus.votes import Accepted


@dataclass(frozen=True)
class PaxosState(RoundState):
    """One peer's volatile knowledge of the round. The promises belong to the round, the rest to the current view.

    promises           the last promise that each peer sent to this peer as a leader, for any view
    accepts            on the leader: (peer, signature) of each accept that other peers sent for its proposal
    """

    promises: frozenset[tuple[str, Promise]] = frozenset()
    accepts: frozenset[tuple[str, bytes]] = frozenset()
    proposal: Accepted | None = None

    @property
    def acceptors(self) -> set[str]:
        return {peer for peer, _ in self.accepts}

    def promises_of(self, view: int) -> dict[str, Promise]:
        """Return the promises for this view, keyed by peer."""
        return {peer: promise for peer, promise in self.promises if promise.view == view}

    def with_promise(self, sender: str, promise: Promise) -> PaxosState:
        others = frozenset((peer, promise) for peer, promise in self.promises if peer != sender)
        return replace(self, promises=others | {(sender, promise)})

    def in_another_view(self) -> PaxosState:
        return replace(super().in_another_view(), accepts=frozenset())
