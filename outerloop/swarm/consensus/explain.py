"""One line for users that explains why a round is not decided yet: what it waits for, from which peers."""

from __future__ import annotations

from collections.abc import Iterable

from outerloop.swarm.consensus.chain import CommitChain
from outerloop.swarm.consensus.commit import majority
from outerloop.swarm.consensus.proposer import candidates

NAMED = 5  # peers named in a line; the others are only counted


def waiting_for(agreement: CommitChain) -> str:
    memory = agreement.memory
    where = f"round {memory.number}, view {memory.promised}: "
    if not agreement.votes:
        return where + f"decided by {len(memory.roster)} peers, this one is not among them"
    return where + (_as_leader(agreement) if agreement.leads else _as_follower(agreement))


def _as_follower(agreement: CommitChain) -> str:
    memory, leader = agreement.memory, agreement.memory.leader(agreement.view)
    if proposal := agreement.gathering.proposal:
        missing = set(proposal.commit.participants) - agreement.payloads
        return f"{leader} proposes; payloads of {names(one.peer for one in missing)} have not arrived yet"
    if memory.accepted and memory.accepted.view == memory.promised:
        return f"accepted; {leader} needs a majority of {len(memory.roster)} peers"
    return f"{leader} has to propose"


def _as_leader(agreement: CommitChain) -> str:
    memory, gathering = agreement.memory, agreement.gathering
    needed, others = majority(memory.roster), set(memory.roster) - {memory.peer}
    if agreement.proposed:
        silent = others - gathering.acceptors
        return f"{1 + len(gathering.accepts)} of {needed} accepts have arrived, none from {names(silent)}"
    silent = others.difference(gathering.promises_of(memory.promised))
    if memory.promised > 0 and len(memory.roster) - len(silent) < needed:
        return f"{len(memory.roster) - len(silent)} of {needed} promises have arrived, none from {names(silent)}"
    if gathering.wanted:
        return f"proposed before; payloads of {names(one.peer for one in gathering.wanted)} have not arrived yet"
    here, awaited = {one.peer for one in candidates(memory, agreement.countable)}, agreement.awaited
    enough = agreement.closing.needed(
        len(memory.roster), awaited=len(awaited), grace=gathering.grace, deadline=gathering.deadline
    )
    return f"{len(here)} of {enough} payloads have arrived, none from {names(awaited - here)}"


def names(peers: Iterable[str]) -> str:
    """Return the first NAMED names and how many more there are."""
    known = sorted(set(peers))
    more = f" and {len(known) - NAMED} more" if len(known) > NAMED else ""
    return ", ".join(known[:NAMED]) + more
