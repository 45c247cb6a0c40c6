"""What a peer knows of the round at hand and may lose in a crash: the next view makes up for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from outerloop.swarm.consensus.commit import Participant
from outerloop.swarm.consensus.messages import Accepted, Promise, ViewWish


@dataclass(frozen=True)
class SoftState:
    """Immutable: an event makes a new one. The first five are of the round, the others of the view at hand.

    `grace`, `deadline`: over. `asks`: of the round's learners, who asked after the right head, signed. `wishes`: the
    last of each peer for a view (view_change.py). `promises`: the last of each peer to this one as the leader, for this
    view or another. As a leader: signed `accepts` of the proposal, the own one apart. As a follower: `proposal`, which
    waits for its payloads. `wanted`: payloads that were asked for.
    """

    grace: bool = False
    deadline: bool = False
    asks: frozenset[tuple[str, bytes]] = frozenset()
    wishes: frozenset[ViewWish] = frozenset()
    promises: frozenset[tuple[str, Promise]] = frozenset()

    accepts: frozenset[tuple[str, bytes]] = frozenset()
    proposal: Accepted | None = None
    wanted: frozenset[Participant] = frozenset()

    @property
    def asked(self) -> frozenset[str]:
        return frozenset(peer for peer, _ in self.asks)

    @property
    def acceptors(self) -> set[str]:
        return {peer for peer, _ in self.accepts}

    def promises_of(self, view: int) -> dict[str, Promise]:
        """Return who promised this view, and how."""
        return {peer: promise for peer, promise in self.promises if promise.view == view}

    def with_promise(self, sender: str, promise: Promise) -> SoftState:
        others = frozenset((peer, one) for peer, one in self.promises if peer != sender)
        return replace(self, promises=others | {(sender, promise)})

    def with_wishes(self, wishes: Iterable[ViewWish]) -> SoftState:
        """Each in place of the last of its peer."""
        new = {one.peer: one for one in (*self.wishes, *wishes)}
        return replace(self, wishes=frozenset(new.values()))

    def in_another_view(self) -> SoftState:
        return SoftState(self.grace, self.deadline, self.asks, self.wishes, self.promises)
