"""The leader's choice of a proposal: what a majority may have accepted already, otherwise a commit of its own.

may have     accepted in the highest view among the promises of a majority; any majority will do. So a peer that has
             accepted a commit with unavailable payloads does not block a round that a majority can continue

The promises behind the choice are sent with the proposal, and each acceptor checks them (justification.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from outerloop.swarm.consensus.commit import Commit, Participant, majority
from outerloop.swarm.consensus.gather_policy import GatherPolicy
from outerloop.swarm.consensus.hard_state import HardState
from outerloop.swarm.consensus.justification import binding, credible
from outerloop.swarm.consensus.leadership import next_demoted
from outerloop.swarm.consensus.messages import ChainLink, Pledge, Promise
from outerloop.swarm.consensus.roster_change import next_roster
from outerloop.swarm.consensus.soft_state import SoftState
from outerloop.swarm.validation import MAX_PEERS

Promises = Mapping[str, Promise]
Willing = Callable[[Commit, tuple[Pledge, ...]], bool]


@dataclass(frozen=True)
class ProposalChoice:
    """The commit to propose and a peer that holds its payloads. `links`: of the views in which it was proposed.
    `pledges`: the promises that justify it now."""

    commit: Commit
    holder: str
    links: tuple[ChainLink, ...]
    pledges: tuple[Pledge, ...]


def choice(
    memory: HardState,
    gathering: SoftState,
    promises: Promises,
    *,
    countable: Collection[Participant],
    awaited: Collection[str],
    willing: Willing,
    closing: GatherPolicy,
    absent_rounds: int,
) -> ProposalChoice | None:
    """Return what to propose, or None if nothing can be proposed yet.

    `promises`: of the current view, including this peer's; none in view 0. `countable`: the round's payloads that are
    held and may be counted. `awaited`: the roster peers whose payloads may be counted. `willing`: returns whether a
    commit that these promises report can be proposed again.
    """
    if memory.promised > 0:
        if len(promises) < majority(memory.roster):
            return None
        promises = _considered(memory, promises, willing)
    pledges = credible(memory.run, memory.head, _shown(promises))
    if memory.promised > 0 and len(pledges) < majority(memory.roster):
        return None
    view, commits = binding(pledges)
    for peer, vote, _ in pledges:
        accepted = promises[peer].accepted
        if accepted and vote == (view, accepted.commit.digest) and accepted.commit.digest in commits:
            return ProposalChoice(accepted.commit, peer, accepted.links, pledges)
    if not closes(memory, gathering, countable, awaited=awaited, closing=closing):
        return None
    return ProposalChoice(_own(memory, gathering, countable, absent_rounds), memory.peer, (), pledges)


def _own(memory: HardState, gathering: SoftState, countable: Collection[Participant], absent_rounds: int) -> Commit:
    participants = candidates(memory, countable, gathering.asked)
    roster = next_roster(
        [one.commit for one in memory.log],
        participants,
        run=memory.run,
        view=memory.promised,
        absent_rounds=absent_rounds,
    )
    counted = {one.peer for one in participants}
    asks = tuple(sorted(one for one in gathering.asks if one[0] in counted))
    demoted = next_demoted(memory.run, memory.head, memory.promised, roster)
    return Commit(memory.number, memory.head.digest, memory.promised, participants, roster, asks, demoted)


def _considered(memory: HardState, promises: Promises, willing: Willing) -> Promises:
    """Return the promises to use. Leave out commits that cannot be proposed again, if the rest is a majority."""
    holder = _latest(promises)
    latest = promises[holder].accepted if holder else None
    if latest is None or willing(latest.commit, _shown(promises)):
        return promises
    others = {
        peer: one for peer, one in promises.items() if one.accepted is None or one.accepted.commit != latest.commit
    }
    return promises if len(others) < majority(memory.roster) else _considered(memory, others, willing)


def _shown(promises: Promises) -> tuple[Pledge, ...]:
    return tuple(sorted(Pledge(peer, one.vote, one.signature) for peer, one in promises.items()))


def _latest(promises: Promises) -> str:
    """Return the peer that reports an accept in the highest view; empty if there is none and the choice is free."""
    told = [(one.accepted.view, peer) for peer, one in promises.items() if one.accepted]
    return max(told)[1] if told else ""


def closes(
    memory: HardState,
    gathering: SoftState,
    held: Collection[Participant],
    *,
    awaited: Collection[str],
    closing: GatherPolicy,
) -> bool:
    """Return whether the held payloads are enough now. Only roster peers count; learners are awaited during the grace.

    Without that wait, a learner only slightly slower than the others would never be counted.
    """
    voters = {one.peer for one in candidates(memory, held)}
    grace, deadline = gathering.grace, gathering.deadline
    if gathering.asked - {one.peer for one in held} and not (grace or deadline):
        return False
    return closing.closes(len(voters), len(memory.roster), awaited=len(awaited), grace=grace, deadline=deadline)


def candidates(
    memory: HardState, held: Collection[Participant], learners: Collection[str] = ()
) -> tuple[Participant, ...]:
    """Return one held payload per roster peer and per learner, in order, MAX_PEERS at most."""
    by_peer = {one.peer: one for one in sorted(held)}
    peers = [peer for peer in dict.fromkeys([*memory.roster, *sorted(learners)]) if peer in by_peer]
    return tuple(by_peer[peer] for peer in sorted(peers[:MAX_PEERS]))
