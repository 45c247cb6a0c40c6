"""Choose what the leader proposes: a commit that a majority may already have accepted, otherwise a new commit.

Of the commits that the promises of a majority report, only the one accepted in the highest view can have been accepted
by a majority. The leader is free to choose the majority whose promises it uses. So a peer that has accepted a commit
with unavailable payloads does not block the round: the leader can use the promises of other peers, if they are a
majority. Together with the proposal, the leader sends the promises that it used, and each acceptor checks them
(justification.py).

If these promises report no commit, the choice is free, and the leader composes a new commit once the gather of the
round closes (../proposer.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from outerloop.swarm.consensus.commit import Commit, Participant, majority
from outerloop.swarm.consensus.messages import Promise
from outerloop.swarm.consensus.paxos.justification import binding, credible
from outerloop.swarm.consensus.paxos.state import PaxosState
from outerloop.swarm.consensus.proposer import GatherPolicy, own_commit
from outerloop.swarm.consensus.quorum import MAJORITY
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.consensus.votes import ChainLink, Pledge

Promises = Mapping[str, Promise]
CanRepropose = Callable[[Commit, tuple[Pledge, ...]], bool]


@dataclass(frozen=True)
class ProposalChoice:
    """The commit to propose, and a peer that holds its payloads.

    `links`: one link per earlier view in which the commit was proposed. `pledges`: the promises that justify the
    proposal in the current view.
    """

    commit: Commit
    holder: str
    links: tuple[ChainLink, ...]
    pledges: tuple[Pledge, ...]


def choice(
    hard_state: HardState,
    soft_state: PaxosState,
    promises: Promises,
    *,
    countable: Collection[Participant],
    awaited: Collection[str],
    can_repropose: CanRepropose,
    gather_policy: GatherPolicy,
    absent_rounds: int,
) -> ProposalChoice | None:
    """Return the proposal to make, or None if no proposal is possible yet.

    `promises`: the promises for the current view, including this peer's; empty in view 0. `countable`: the round's
    payloads that are stored and may be counted. `awaited`: the roster peers whose payloads may be counted.
    `can_repropose`: returns whether this peer can propose a commit again, given the promises that report it.
    """
    if hard_state.promised > 0:
        if not _are_majority(hard_state, promises):
            return None
        promises = _usable_promises(hard_state, promises, can_repropose)
    pledges = credible(hard_state.session, hard_state.head, _as_pledges(promises))
    if hard_state.promised > 0 and not _are_majority(hard_state, [pledge.peer for pledge in pledges]):
        return None
    view, commits = binding(pledges)
    for peer, vote, _ in pledges:
        accepted = promises[peer].accepted
        if accepted and vote == (view, accepted.commit.digest) and accepted.commit.digest in commits:
            return ProposalChoice(accepted.commit, peer, accepted.links, pledges)
    commit = own_commit(
        hard_state,
        soft_state,
        countable,
        awaited=awaited,
        gather_policy=gather_policy,
        absent_rounds=absent_rounds,
        quorum=MAJORITY,
    )
    return ProposalChoice(commit, hard_state.peer, (), pledges) if commit else None


def _usable_promises(hard_state: HardState, promises: Promises, can_repropose: CanRepropose) -> Promises:
    """Return the promises without those for a commit that cannot be proposed again, as long as a majority remains."""
    holder = _latest_acceptor(promises)
    latest = promises[holder].accepted if holder else None
    if latest is None or can_repropose(latest.commit, _as_pledges(promises)):
        return promises
    others = {
        peer: promise
        for peer, promise in promises.items()
        if promise.accepted is None or promise.accepted.commit != latest.commit
    }
    return _usable_promises(hard_state, others, can_repropose) if _are_majority(hard_state, others) else promises


def _are_majority(hard_state: HardState, peers: Collection[str]) -> bool:
    """Return whether these peers of the roster are a majority."""
    return len(peers) >= majority(hard_state.counted_peers(peers))


def _as_pledges(promises: Promises) -> tuple[Pledge, ...]:
    return tuple(sorted(Pledge(peer, promise.vote, promise.signature) for peer, promise in promises.items()))


def _latest_acceptor(promises: Promises) -> str:
    """Return the peer that reports an accept in the highest view, or "" if no peer reports an accept."""
    accepted = [(promise.accepted.view, peer) for peer, promise in promises.items() if promise.accepted]
    return max(accepted)[1] if accepted else ""
