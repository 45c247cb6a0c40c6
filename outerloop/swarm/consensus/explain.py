"""Explain to the user in one line why a round is not decided yet: what this peer waits for, and from which peers."""

from __future__ import annotations

from collections.abc import Iterable

from outerloop.swarm.consensus.chain import Chain
from outerloop.swarm.consensus.commit import Participant
from outerloop.swarm.consensus.proposer import candidates
from outerloop.types import listed_names


def waiting_for(chain: Chain) -> str:
    """Return one line that states the current view, and what this peer is waiting for."""
    hard_state = chain.hard_state
    where = f"view {hard_state.promised}: "
    if not chain.votes:
        return where + f"decided by {len(hard_state.roster)} peers, not including this one"
    return where + (_as_leader(chain) if chain.leads else _as_follower(chain))


def _as_follower(chain: Chain) -> str:
    hard_state, leader = chain.hard_state, chain.hard_state.leader(chain.view)
    commit = chain.soft_state.pending
    if commit and (missing := set(commit.participants) - chain.payloads):
        return f"{leader} has proposed a commit; payloads of {_owners(missing)} have not arrived yet"
    if hard_state.accepted and hard_state.accepted.view == hard_state.promised:
        needed = f"{chain.quorum.name} of {len(hard_state.remaining)} peers"
        return f"this peer has accepted the proposal; {leader} needs {needed}"
    return f"{leader} has not proposed a commit yet"


def _as_leader(chain: Chain) -> str:
    hard_state, soft_state = chain.hard_state, chain.soft_state
    if lacking := chain.lacking():
        have = f"{lacking.arrived} of {lacking.needed} {lacking.kind} have arrived"
        return f"{have}, none from {names(lacking.silent)}"
    if soft_state.wanted:
        return (
            f"this peer must repeat an earlier proposal; payloads of {_owners(soft_state.wanted)} have not arrived yet"
        )
    arrived = {participant.peer for participant in candidates(hard_state, chain.countable)}
    awaited = chain.awaited
    enough = chain.gather_policy.needed(
        len(hard_state.remaining), awaited=len(awaited), grace=soft_state.grace, deadline=soft_state.deadline
    )
    return f"{len(arrived)} of {enough} payloads have arrived, none from {names(awaited - arrived)}"


def _owners(payloads: Iterable[Participant]) -> str:
    return names(payload.peer for payload in payloads)


def names(peers: Iterable[str]) -> str:
    """Return the first of the sorted names as text, and the number of the others."""
    return listed_names(sorted(set(peers)))
