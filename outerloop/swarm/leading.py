"""What the leader of a view proposes: what a majority may have accepted already, else its own choice.

may have     in the highest view among the promises of some majority, whichever; those of any will do. So who has
             accepted a commit whose payloads nobody can get does not hold up a round that a majority can go on with
"""

from __future__ import annotations

from collections.abc import Collection

from outerloop.swarm.ballots import Accepted
from outerloop.swarm.closing import Closing
from outerloop.swarm.commits import Commit, Participant, majority
from outerloop.swarm.fields import MAX_PEERS
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
        if accepted := _accepted(memory, promises, held):
            return accepted
    if not closes(memory, gathering, held, closing=closing):
        return None
    participants = candidates(memory, held, gathering.asked)
    roster = next_roster([one.commit for one in memory.log], participants, absent_rounds=absent_rounds)
    return Commit(memory.number, memory.head.digest, memory.promised, participants, roster), memory.peer


def _accepted(
    memory: Memory, promises: dict[str, Accepted | None], held: Collection[Participant]
) -> tuple[Commit, str] | None:
    """What has to be proposed again, and who holds its payloads; None: the choice is free."""
    known = sorted((one.view, peer) for peer, one in promises.items() if one is not None)
    if not known:
        return None
    _, holder = known[-1]
    highest = promises[holder]
    assert highest is not None
    others = {peer: one for peer, one in promises.items() if one is None or one.commit != highest.commit}
    if set(highest.commit.participants) <= set(held) or len(others) < majority(memory.roster):
        return highest.commit, holder
    return _accepted(memory, others, held)


def closes(memory: Memory, gathering: Gathering, held: Collection[Participant], *, closing: Closing) -> bool:
    """Whether the payloads held are enough now: those of the roster count. Learners are waited for in the grace alone.

    A learner slower than the others by less than the grace would never be counted if nobody waited for it.
    """
    voters = {one.peer for one in candidates(memory, held)}
    awaited = gathering.asked - {one.peer for one in held}
    if awaited and not (gathering.grace or gathering.deadline):
        return False
    return closing.closes(len(voters), len(memory.roster), grace=gathering.grace, deadline=gathering.deadline)


def candidates(
    memory: Memory, held: Collection[Participant], learners: Collection[str] = ()
) -> tuple[Participant, ...]:
    """One payload of each peer of the roster, and of each learner, that has one here, in order; MAX_PEERS at most."""
    by_peer = {one.peer: one for one in sorted(held)}
    peers = [peer for peer in dict.fromkeys([*memory.roster, *sorted(learners)]) if peer in by_peer]
    return tuple(by_peer[peer] for peer in sorted(peers[:MAX_PEERS]))
