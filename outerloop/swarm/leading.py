"""What the leader of a view proposes: what a majority may have accepted already, else its own choice."""

from __future__ import annotations

from collections.abc import Collection

from outerloop.swarm.closing import Closing
from outerloop.swarm.commits import Commit, Participant, majority
from outerloop.swarm.gathering import Gathering
from outerloop.swarm.memory import Memory
from outerloop.swarm.succession import next_roster


def choice(
    memory: Memory, gathering: Gathering, held: Collection[Participant], *, closing: Closing, absent_rounds: int
) -> tuple[Commit, str] | None:
    """The commit to propose and who holds its payloads; None: not yet. `held`: the round's payloads held here."""
    if memory.promised > 0:
        promises = dict(gathering.promises) | {memory.peer: memory.accepted}
        if len(promises) < majority(memory.roster):
            return None
        accepted = sorted((one.view, peer) for peer, one in promises.items() if one is not None)
        if accepted:
            _, holder = accepted[-1]
            highest = promises[holder]
            assert highest is not None
            return highest.commit, holder
    participants = candidates(memory, held)
    if not closing.closes(len(participants), len(memory.roster), grace=gathering.grace, deadline=gathering.deadline):
        return None
    history = [one.commit for one in memory.log]
    roster = next_roster(history, participants, gathering.asked, absent_rounds=absent_rounds)
    return Commit(memory.number, memory.head.digest, memory.promised, participants, roster), memory.peer


def candidates(memory: Memory, held: Collection[Participant]) -> tuple[Participant, ...]:
    """One payload of each peer of the roster that has one here, in order."""
    by_peer = {one.peer: one for one in sorted(held)}
    return tuple(by_peer[peer] for peer in memory.roster if peer in by_peer)
