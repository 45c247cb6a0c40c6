"""Check a commit that another peer sent. Each check returns the reason to reject it, or "" if there is none.

    commit_error        the commit cannot be the result of the round, regardless of which peer reports it. All peers
                        whose logs reach equally far back get the same result. The check is applied to proposals,
                        promises and decided commits
    vote_refusal        this peer does not vote for the commit, but peers that know more or allow other peers may vote
                        for it. This peer still votes for a commit that an honest peer has accepted
                        (paxos/instance.py), because the round could not end otherwise
    certificate_error   the certificate does not prove that the commit was decided

Votes are counted by peer id: one key has one vote, regardless of the names under which it votes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from outerloop.swarm.consensus.commit import Commit, next_demoted
from outerloop.swarm.consensus.paxos.justification import justification_error
from outerloop.swarm.consensus.quorum import MAJORITY, TWO_THIRDS, Quorum
from outerloop.swarm.consensus.resignation import remaining_peers, resignation_error
from outerloop.swarm.consensus.roster_change import absent_peers, resulting_roster, shows_absences
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.consensus.statements import Statement, StatementSigner, ask
from outerloop.swarm.consensus.votes import Accepted, CommitCertificate
from outerloop.swarm.validation import MAX_AMOUNT, id_of


def commit_error(
    hard_state: HardState,
    commit: Commit,
    signer: StatementSigner,
    *,
    min_peers: int,
    absent_rounds: int,
    max_bytes: int = MAX_AMOUNT,
    quorum: Quorum = MAJORITY,
) -> str:
    """Return why this cannot be the commit of the current round, or "" if it can. `max_bytes`: payload size limit."""
    present = {participant.peer for participant in commit.participants}
    if commit.parent != hard_state.head.digest:
        return f"commit {commit.number} does not follow this peer's last commit: their histories differ"
    if (voters := len(present.intersection(hard_state.roster))) < min_peers:  # counts the same peers as proposer.closes
        return f"commit {commit.number} has {voters} participants, fewer than min_peers={min_peers}"
    if large := [participant for participant in commit.participants if participant.size_bytes > max_bytes]:
        sizes = ", ".join(f"{payload.size_bytes} bytes from {payload.peer}" for payload in large)
        return f"commit {commit.number} includes payloads that are too large: {sizes}; at most {max_bytes} are allowed"
    return (
        _join_request_error(hard_state, commit, present, signer)
        or _roster_error(hard_state, commit, present, min_peers, absent_rounds, quorum)
        or _demoted_error(hard_state, commit)
    )


def vote_refusal(
    hard_state: HardState, commit: Commit, *, first: bool, absent_rounds: int, allowed: Callable[[str], bool]
) -> str:
    """Return why this peer does not vote for a commit, or "" if it does.

    `first`: whether the commit is proposed for the first time.
    """
    counted = {participant.peer for participant in commit.participants} if first else set()
    if outside := [
        peer for peer in sorted(counted.union(set(commit.roster).difference(hard_state.roster))) if not allowed(peer)
    ]:
        return f"commit {commit.number} includes {outside[0]}, which may not take part"
    leaving = set(hard_state.roster).difference(commit.roster, hard_state.resigned)
    if leaving and not shows_absences(hard_state, commit.view, absent_rounds):
        return f"commit {commit.number} drops {min(leaving)}, and the local log does not show whether it was absent"
    return ""


def certificate_error(head: Commit, decided: CommitCertificate, signer: StatementSigner) -> str:
    """Return why `decided` does not prove that its commit was decided after `head`, or "" if it does.

    Possible reasons are too few valid accepts, and links that do not justify the proposal.
    """
    number, resignations = decided.commit.number, decided.resignations
    if reason := resignation_error(head, resignations, signer):
        return f"commit {number} {reason}"
    roster = remaining_peers(head, resignations, voters=[peer for peer, _ in decided.accepts])
    voters = count_voters(roster, decided.accepts, decided.statement, signer)
    if decided.byzantine:
        needed = TWO_THIRDS.of(roster)
        if voters >= needed:
            return ""
        return f"commit {number} has valid votes from {voters} of {len(roster)} peers, but needs {needed}"
    if voters < MAJORITY.of(roster):
        return f"commit {number} has accepts from {voters} of {len(roster)} peers, not a majority"
    if decided.view == 0:
        return ""
    return justification_error(head, Accepted(decided.commit, decided.links), signer, resignations=resignations)


def count_voters(
    roster: tuple[str, ...], votes: Iterable[tuple[str, bytes]], statement: Statement, signer: StatementSigner
) -> int:
    """Return the number of peers of the roster (ids) whose votes are valid signatures of the statement."""
    signed = {peer: signature for peer, signature in votes if peer in roster}
    return len({id_of(peer) for peer, signature in signed.items() if signer.verify(peer, statement, signature)})


def _join_request_error(hard_state: HardState, commit: Commit, present: set[str], signer: StatementSigner) -> str:
    """Check that all counted learners asked to be counted, and that no key is counted twice.

    Return the error, or "".
    """
    learners, statement = present.difference(hard_state.roster), ask(commit.number, commit.parent)
    if duplicate := _duplicate_id(learners.union(hard_state.roster)):
        return f"commit {commit.number} includes {duplicate} under another name as well"
    if learners != {peer for peer, _ in commit.asks}:
        unasked = ", ".join(sorted(learners.symmetric_difference(peer for peer, _ in commit.asks)))
        return f"commit {commit.number} includes learners other than those that asked to join: {unasked}"
    if forged := next((peer for peer, signature in commit.asks if not signer.verify(peer, statement, signature)), ""):
        return f"commit {commit.number} includes {forged}, which has not asked to join"
    return ""


def _roster_error(
    hard_state: HardState, commit: Commit, present: set[str], min_peers: int, absent_rounds: int, quorum: Quorum
) -> str:
    """Check that leaving peers were absent or have resigned, and that entering peers may enter (roster_change.py).

    Return the error, or "".
    """
    stay, resigned = set(hard_state.roster).intersection(commit.roster), hard_state.resigned
    leaving = set(hard_state.roster) - stay
    if leaving & resigned and len(stay & present) < min_peers:
        return (
            f"commit {commit.number} drops {min(leaving & resigned)}, which has resigned, although fewer than"
            f" min_peers={min_peers} of the peers that stay take part"
        )
    leaving -= resigned
    if leaving & present:
        return f"commit {commit.number} drops peers that take part in it"
    history = [decided.commit for decided in hard_state.log]
    missing, _ = absent_peers(history, session=hard_state.session, view=commit.view, absent_rounds=absent_rounds)
    if shows_absences(hard_state, commit.view, absent_rounds) and (early := leaving - missing):
        return f"commit {commit.number} drops {min(early)}, which did not miss {absent_rounds} rounds in a row"
    if unknown := set(commit.roster).difference(hard_state.roster, present):
        return f"commit {commit.number} admits {min(unknown)}, whose payload it does not include"
    if commit.roster != (expected := resulting_roster(hard_state.roster, stay, present, quorum)):
        return (
            f"commit {commit.number} names a next roster of {len(commit.roster)} peers,"
            f" not the expected roster of {len(expected)}"
        )
    return ""


def _demoted_error(hard_state: HardState, commit: Commit) -> str:
    """Check that the commit demotes the peers whose views failed (commit.py). Return the error, or ""."""
    expected = next_demoted(hard_state.session, hard_state.head, commit.view, commit.roster)
    if commit.demoted == expected:
        return ""
    named, due = (", ".join(peers) or "nobody" for peers in (commit.demoted, expected))
    return f"commit {commit.number} demotes {named}, but the failed views demote {due}"


def _duplicate_id(names: Iterable[str]) -> str:
    """Return a name that has the same peer id as another of the names, or "" if there is none."""
    seen: dict[str, str] = {}
    return next((name for name in sorted(names) if seen.setdefault(id_of(name), name) != name), "")
