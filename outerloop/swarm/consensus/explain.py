"""Explain to the user in one line why a round is not decided yet: what it waits for, and from which peers."""

from __future__ import annotations

from collections.abc import Iterable

from outerloop.swarm.consensus.chain import Chain, CommitChain
from outerloop.swarm.consensus.commit import Participant
from outerloop.swarm.consensus.hotstuff.chain import HotStuffChain
from outerloop.swarm.consensus.hotstuff.messages import COMMIT, PREPARE
from outerloop.swarm.consensus.proposer import candidates

NAMED = 5  # maximum number of peers that a line names; the others are only counted


def waiting_for(agreement: Chain) -> str:
    """Return one line that states the current round and view, and what this peer is waiting for."""
    hard_state = agreement.hard_state
    where = f"round {hard_state.number}, view {hard_state.promised}: "
    if not agreement.votes:
        return where + f"decided by {len(hard_state.roster)} peers, not including this one"
    return where + (_as_leader(agreement) if agreement.leads else _as_follower(agreement))


def _as_follower(agreement: Chain) -> str:
    hard_state, leader = agreement.hard_state, agreement.hard_state.leader(agreement.view)
    if commit := agreement.soft_state.pending:
        missing = set(commit.participants) - agreement.payloads
        return f"{leader} has proposed a commit; payloads of {_owners(missing)} have not arrived yet"
    if hard_state.accepted and hard_state.accepted.view == hard_state.promised:
        needed = f"{agreement.quorum.name} of {len(hard_state.roster)} peers"
        return f"this peer has accepted the proposal; {leader} needs {needed}"
    return f"{leader} has not proposed a commit yet"


def _as_leader(agreement: Chain) -> str:
    hard_state, soft_state = agreement.hard_state, agreement.soft_state
    if isinstance(agreement, CommitChain):
        waiting = _for_accepts(agreement)
    else:
        assert isinstance(agreement, HotStuffChain)
        waiting = _for_votes(agreement)
    if waiting:
        return waiting
    if soft_state.wanted:
        return (
            f"this peer must repeat an earlier proposal; payloads of {_owners(soft_state.wanted)} have not arrived yet"
        )
    arrived = {participant.peer for participant in candidates(hard_state, agreement.countable)}
    awaited = agreement.awaited
    enough = agreement.gather_policy.needed(
        len(hard_state.roster), awaited=len(awaited), grace=soft_state.grace, deadline=soft_state.deadline
    )
    return f"{len(arrived)} of {enough} payloads have arrived, none from {names(awaited - arrived)}"


def _for_accepts(agreement: CommitChain) -> str:
    """Return which accepts or promises a leader lacks in Paxos, or "" if it lacks none."""
    hard_state, soft_state = agreement.hard_state, agreement.soft_state
    needed, others = agreement.quorum.of(hard_state.roster), set(hard_state.roster) - {hard_state.peer}
    if agreement.proposed:
        silent = others - soft_state.acceptors
        return f"{1 + len(soft_state.accepts)} of {needed} accepts have arrived, none from {names(silent)}"
    silent = others.difference(soft_state.promises_of(hard_state.promised))
    if hard_state.promised > 0 and len(hard_state.roster) - len(silent) < needed:
        return f"{len(hard_state.roster) - len(silent)} of {needed} promises have arrived, none from {names(silent)}"
    return ""


def _for_votes(agreement: HotStuffChain) -> str:
    """Return which votes or reports a leader lacks in HotStuff-2, or "" if it lacks none."""
    hard_state, soft_state = agreement.hard_state, agreement.soft_state
    needed, others = agreement.quorum.of(hard_state.roster), set(hard_state.roster) - {hard_state.peer}
    if agreement.proposed:
        prepared = agreement.lock is not None and agreement.lock.view == agreement.view
        voters = {peer for peer, _ in soft_state.votes_of(COMMIT if prepared else PREPARE)}
        return f"{1 + len(voters)} of {needed} votes have arrived, none from {names(others - voters)}"
    if agreement.collects_reports:
        silent = others.difference(soft_state.reports_of(hard_state.promised))
        return f"waits for the reports of {names(silent)} in this view"
    return ""


def _owners(payloads: Iterable[Participant]) -> str:
    return names(payload.peer for payload in payloads)


def names(peers: Iterable[str]) -> str:
    """Return up to NAMED of the sorted names as text, followed by the number of remaining ones."""
    known = sorted(set(peers))
    more = f" and {len(known) - NAMED} more" if len(known) > NAMED else ""
    return ", ".join(known[:NAMED]) + more
