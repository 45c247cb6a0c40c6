"""Prove from the logs of other peers that the run is ahead of this peer.

A commit in a log counts only if enough voters agree on it or signatures prove it.

    voters     there are two groups of voters: the other peers of the last roster that this peer knew, and the other
               peers on exchange.allow. More than half of either group is enough. If this peer remembers no roster and
               the run has no allow-list, the peers that answer are the voters
    anchor     the highest commit that more than half of the voters hold in their logs, or the commit that this peer
               remembers, whichever is higher
    newest     the last commit to which the logs lead from the anchor. Each commit on the way is signed by a majority of
               the roster that the previous commit names (signatures.py)
    behind     this peer must download the other peers' state if three conditions hold: more than half of the voters
               are past this peer's round, as shown by their own answers or their signed accepts of later commits; no
               log reaches back to this peer's head; and at most half of this peer's roster is still in its round

Logs reach back only ROUNDS_KEPT commits (state.py), so one assumption is needed: more than half of the voters are
honest. Everything after the anchor is proven by signatures. Each peer id has one vote. This peer itself is not a voter.

If fewer than half of the voters lie, they
    cannot    present another roster, another history, or an undecided round as decided, and cannot convince an
              up-to-date peer that it is behind. Forgeries are rejected, and the sender's name is logged
    can       withhold their logs or send old ones: a late joiner may then start at an earlier commit, and catches up
    can       delay a late joiner while so many other voters are silent that at most half of each group answers

The same rule decides which list of members a peer believes (formation.py).

If a peer returns to a run without an allow-list, and the peers of its last roster do not return, it follows the rule
for a late joiner, with more conditions (newest_commit_past, gather/comeback.py).

In a run without an allow-list, a late joiner can only count the peers that answer, and any machine can create many
identities. So more than half of the peers that answer can present any history. If only one peer answers, the highest
commit in its log is the anchor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.consensus.statements import StatementSigner
from outerloop.swarm.consensus.validity import certificate_error
from outerloop.swarm.consensus.votes import CommitCertificate
from outerloop.swarm.validation import id_of

Logs = Mapping[str, Sequence[CommitCertificate]]
"""Peer id -> the last commits of its log, at least one, as the peer sent them."""
Voters = Sequence[frozenset[str]]
"""Non-empty groups of peer ids. Agreement of more than half of any one group is enough."""


def voters_of(own: str, roster: Iterable[str], listed: Iterable[str]) -> Voters:
    """Return the groups of voters for the peer `own` (an id).

    `roster`: the names in the last roster that this peer knew. `listed`: the ids on exchange.allow.
    """
    groups = (frozenset(map(id_of, roster)) - {own}, frozenset(listed) - {own})
    return [group for group in groups if group]


def has_majority(peers: Collection[str], voters: Voters) -> bool:
    """Return whether these peers (ids) include more than half of at least one group."""
    return any(2 * len(group.intersection(peers)) > len(group) for group in voters)


def newest_provable_commit(
    logs: Logs, signer: StatementSigner, *, voters: Voters = (), known: Commit | None = None
) -> Commit | None:
    """Return the newest proven commit: `known` itself or a later one.

    Return None if `known` is None and no commit is held by most voters. If `voters` is empty, the peers that sent a log
    are the voters.
    """
    found = majority_anchor(logs, voters or [frozenset(logs)])
    head = max((commit for commit in (found, known) if commit), key=lambda commit: commit.number, default=None)
    while head is not None and (after := _after(head, logs, signer)):
        head = after
    return head


def newest_commit_past(head: Commit, logs: Logs, signer: StatementSigner) -> Commit | None:
    """Return the newest commit after `head` that follows from the logs alone, or None. No roster needs to be known.

    The voters are the peers whose log does not end before `head`. More than half of them must hold a common commit
    after `head`. In one of their logs, each commit up to that one must be signed by the roster that the commit before
    it names. A log on another chain than `head` does not count as holding a commit, but its sender is still a voter.
    """
    current = {peer: log for peer, log in logs.items() if log and log[-1].commit.number >= head.number}
    same_chain = {peer: log for peer, log in current.items() if not _contradicts(log, head)}
    voters = [frozenset(current)]
    anchor = majority_anchor(same_chain, voters)
    if anchor is None or anchor.number <= head.number:
        return None
    if not any(_certifies(log, anchor, signer) for log in same_chain.values()):
        return None
    return newest_provable_commit(same_chain, signer, voters=voters)


def contradictions(logs: Logs, head: Commit) -> dict[str, str]:
    """Return a one-line reason for each peer whose log contradicts `head`, the newest proven commit; keyed by peer."""
    heads = {peer: max(log, key=lambda decided: decided.commit.number).commit for peer, log in logs.items()}
    return {
        peer: f"sent commit {other.number}, which contradicts the commits that most voters hold"
        for peer, other in heads.items()
        if other.number >= head.number and other.digest != head.digest
    }


def proof_error(head: Commit, decided: CommitCertificate, signer: StatementSigner) -> str:
    """Return why `decided` does not prove that its commit was decided right after `head`, or "" if it does."""
    if (decided.commit.number, decided.commit.parent) != (head.number + 1, head.digest):
        return f"commit {decided.commit.number} does not follow the local commit {head.number}"
    return certificate_error(head, decided, signer)


def peers_ahead(number: int, logs: Logs, signer: StatementSigner, *, voters: Voters) -> set[str]:
    """Return the voters (ids) that are past round `number`: they sent a later commit, or signed an accept of one.

    An accept counts because an honest peer accepts a commit of round r only once it knows all earlier commits. The
    search stops once it has found a majority. It checks at most one signature of each voter per log, so that a log with
    many forged signatures does not cause more work.
    """
    later = {peer: [decided for decided in log if decided.commit.number > number] for peer, log in logs.items()}
    counted = frozenset[str]().union(*voters)
    found = set(counted.intersection(peer for peer, log in later.items() if log))
    for log in later.values():
        signed = {id_of(peer): (peer, signature, decided) for decided in log for peer, signature in decided.accepts}
        for voter in counted.intersection(signed) - found:
            if has_majority(found, voters):
                return found
            if _has_accepted(*signed[voter], signer):
                found.add(voter)
    return found


def _has_accepted(peer: str, signature: bytes, decided: CommitCertificate, signer: StatementSigner) -> bool:
    return signer.verify(peer, decided.statement, signature)


def majority_anchor(logs: Logs, voters: Voters) -> Commit | None:
    """Return the highest commit that most voters have in their logs, or None if there is no such commit."""
    commits = {decided.commit for log in logs.values() for decided in log}
    holders: dict[bytes, set[str]] = {commit.digest: set() for commit in commits}
    for peer, log in logs.items():
        for decided in log:
            holders[decided.commit.digest].add(peer)
    common = [commit for commit in commits if has_majority(holders[commit.digest], voters)]
    return max(common, key=lambda commit: commit.number, default=None)


def _contradicts(log: Sequence[CommitCertificate], head: Commit) -> bool:
    """Return whether a log reaches back to the number of `head`, but does not contain it."""
    contains = any(head.digest in (decided.commit.digest, decided.commit.parent) for decided in log)
    return log[0].commit.number <= head.number + 1 and not contains


def _certifies(log: Sequence[CommitCertificate], commit: Commit, signer: StatementSigner) -> bool:
    """Return whether a log contains `commit`, and each commit up to it is proven by the one before it in the log."""
    until = [decided for decided in log if decided.commit.number <= commit.number]
    if not until or until[-1].commit != commit:
        return False
    return not any(proof_error(before.commit, decided, signer) for before, decided in pairwise(until))


def _after(head: Commit, logs: Logs, signer: StatementSigner) -> Commit | None:
    received = (decided for log in logs.values() for decided in log)
    return next((decided.commit for decided in received if not proof_error(head, decided, signer)), None)
