"""What a peer knows of the round at hand and may lose in a crash: the next view makes up for it."""

from __future__ import annotations

from dataclasses import dataclass

from outerloop.swarm.ballots import Accepted
from outerloop.swarm.commits import Participant


@dataclass(frozen=True)
class Gathering:
    """Immutable: an event makes a new one. The first three are of the round, the others of the view at hand.

    `grace`, `deadline`: over. `asked`: the round's learners, who asked after the right head. As a leader: `promises`,
    who promised and what it had accepted, and signed `accepts` of the proposal, the own of either apart. As a
    follower: `proposal`, which waits for its payloads. `wanted`: payloads that were asked for.
    """

    grace: bool = False
    deadline: bool = False
    asked: frozenset[str] = frozenset()

    promises: frozenset[tuple[str, Accepted | None]] = frozenset()
    accepts: frozenset[tuple[str, bytes]] = frozenset()
    proposal: Accepted | None = None
    wanted: frozenset[Participant] = frozenset()

    @property
    def acceptors(self) -> set[str]:
        return {peer for peer, _ in self.accepts}

    def in_another_view(self) -> Gathering:
        return Gathering(self.grace, self.deadline, self.asked)
