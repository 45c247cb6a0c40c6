"""The volatile state of a peer in the current round. It may be lost in a crash: the next view makes up for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from outerloop.swarm.consensus.commit import Participant
from outerloop.swarm.consensus.messages import Promise
from outerloop.swarm.consensus.votes import Accepted, ViewWish


@dataclass(frozen=True)
class SoftState:
    """Immutable volatile state: every event that changes it creates a new instance.

    The first five fields belong to the round, the others to the current view. `grace`, `deadline`: whether it is over.
    `asks`: the learners of the round with their signed requests. `wishes`: each peer's last wish for a view
    (view_change.py). `promises`: each peer's last promise to this peer as leader, for any view. `accepts`, as leader:
    the signed accepts of other peers for the proposal. `proposal`, as follower: waits for its payloads. `wanted`:
    payloads that were requested.
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
        """Return the promises for this view, by peer."""
        return {peer: promise for peer, promise in self.promises if promise.view == view}

    def with_promise(self, sender: str, promise: Promise) -> SoftState:
        others = frozenset((peer, promise) for peer, promise in self.promises if peer != sender)
        return replace(self, promises=others | {(sender, promise)})

    def with_wishes(self, wishes: Iterable[ViewWish]) -> SoftState:
        """Return the state with these wishes, each replacing the previous wish of its peer."""
        new = {wish.peer: wish for wish in (*self.wishes, *wishes)}
        return replace(self, wishes=frozenset(new.values()))

    def in_another_view(self) -> SoftState:
        return SoftState(self.grace, self.deadline, self.asks, self.wishes, self.promises)
