"""The soft state of one peer: its volatile knowledge of the current round.

It may be lost in a crash, because the peers exchange this information again in the next view.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from outerloop.swarm.consensus.commit import Commit, Participant
from outerloop.swarm.consensus.hotstuff.votes import Proposal
from outerloop.swarm.consensus.votes import Accepted, ViewWish


@dataclass(frozen=True)
class RoundState:
    """One peer's volatile knowledge of the current round. It is immutable: every change creates a new instance.

    The first four fields belong to the round, the last two to the current view.

    grace              whether the grace period has ended
    deadline           whether the deadline has passed
    asks               (peer, signature) of each peer outside the roster that asked to be counted in this round
    wishes             each peer's last wish for a view (view_change.py)
    wanted             the missing payloads that have been requested
    proposal           on a follower: the proposal to vote for once all of its payloads are stored
    """

    grace: bool = False
    deadline: bool = False
    asks: frozenset[tuple[str, bytes]] = frozenset()
    wishes: frozenset[ViewWish] = frozenset()
    wanted: frozenset[Participant] = frozenset()
    proposal: Accepted | Proposal | None = None

    @property
    def asked(self) -> frozenset[str]:
        return frozenset(peer for peer, _ in self.asks)

    def with_wishes(self, wishes: Iterable[ViewWish]) -> Self:
        """Return a copy in which each of these wishes replaces the earlier wish of the same peer."""
        new = {wish.peer: wish for wish in (*self.wishes, *wishes)}
        return replace(self, wishes=frozenset(new.values()))

    @property
    def pending(self) -> Commit | None:
        """The commit of the proposal for which this peer has not voted yet, or None."""
        return self.proposal.commit if self.proposal else None

    def in_another_view(self) -> Self:
        """Return a copy without what belongs to the current view."""
        return replace(self, wanted=frozenset(), proposal=None)
