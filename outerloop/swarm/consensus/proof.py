"""Proof that the run is ahead of this peer, from the logs of others.

What a log holds counts only if enough voters agree on it or signatures prove it.

    voters     two groups: the other peers of the last roster that this peer knew, and the other peers on
               exchange.allow. More than half of either group is enough. For a peer without a memory, in a run without
               an allow-list: the peers that answer
    anchor     the highest commit that more than half of the voters hold in their logs, or the one that this peer
               remembers
    newest     the last commit that the logs lead to from the anchor. Each commit on the way is signed by a majority of
               the roster that the one before it names (signatures.py)
    behind     this peer must download the others' state. More than half of the voters are shown to be past its round,
               by their own answer or by their signed accept of a later commit; no log reaches back to its head; and at
               most half of its own roster is at the same round

Logs do not reach back to genesis for long (hard_state.ROUNDS_KEPT), so one thing has to be trusted: that more than half
of the voters are honest. Everything after the anchor is proven by signatures. Each peer id has one vote. This peer
itself is not a voter.

Fewer than half of the voters
    cannot    present another roster, another history, or a round that is not decided; nor convince an up-to-date peer
              that it is behind. What they forge is rejected and logged with their names
    can       withhold their logs, or send old ones: a newcomer may start at an earlier commit, and follows from there
    can       delay a newcomer while so many other voters are silent that at most half of each group answers

The same rule decides which members are believed about the session (formation.py).

In a run without an allow-list a newcomer can only count the peers that answer, and anybody can create many identities.
More than half of those that answer can present any history. If only one peer answers, its log is the anchor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.consensus.statements import AcceptSigner, accept
from outerloop.swarm.consensus.validity import certificate_error
from outerloop.swarm.consensus.votes import CommitCertificate
from outerloop.swarm.validation import id_of

Logs = Mapping[str, Sequence[CommitCertificate]]
"""Peer id -> the last commits of its log as it sent them, at least one."""
Voters = Sequence[frozenset[str]]
"""Groups of peer ids, none of them empty; more than half of any of them is enough."""


def voters_of(own: str, roster: Iterable[str], listed: Iterable[str]) -> Voters:
    """Return the groups of voters for the peer `own` (id): the last roster that it knew (names), and the allow-list."""
    groups = (frozenset(map(id_of, roster)) - {own}, frozenset(listed) - {own})
    return [group for group in groups if group]


def has_majority(peers: Collection[str], voters: Voters) -> bool:
    """Return whether these peers (ids) are more than half of one of the groups."""
    return any(2 * len(group.intersection(peers)) > len(group) for group in voters)


def newest_provable_commit(
    logs: Logs, signer: AcceptSigner, *, voters: Voters = (), known: Commit | None = None
) -> Commit | None:
    """Return the newest commit that is proven, `known` or a later one.

    None if most voters hold no common commit and none is known. Without `voters`, the peers that answered are the
    voters.
    """
    found = majority_anchor(logs, voters or [frozenset(logs)])
    head = max((commit for commit in (found, known) if commit), key=lambda commit: commit.number, default=None)
    while head is not None and (after := _after(head, logs, signer)):
        head = after
    return head


def contradictions(logs: Logs, head: Commit) -> dict[str, str]:
    """Return peer -> reason in one line, for peers whose logs contradict `head`, the newest commit found."""
    heads = {peer: max(log, key=lambda decided: decided.commit.number).commit for peer, log in logs.items()}
    return {
        peer: f"sent commit {other.number}, which does not follow from what most hold"
        for peer, other in heads.items()
        if other.number >= head.number and other.digest != head.digest
    }


def proof_error(head: Commit, decided: CommitCertificate, signer: AcceptSigner) -> str:
    """Return why this is not proven to be the decided commit after `head`; empty if it is."""
    if (decided.commit.number, decided.commit.parent) != (head.number + 1, head.digest):
        return f"commit {decided.commit.number} does not follow the local commit {head.number}"
    return certificate_error(head, decided, signer)


def peers_ahead(number: int, logs: Logs, signer: AcceptSigner, *, voters: Voters) -> set[str]:
    """Return voters (ids) that are past round `number`: they sent a later commit, or signed an accept of one.

    Stops checking once the voters found are most. An honest peer accepts a commit of round r only once it knows all
    before it. From one peer's log, at most one signature of each voter is checked, so that a log with more forged
    signatures causes no more work.
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


def _has_accepted(peer: str, signature: bytes, decided: CommitCertificate, signer: AcceptSigner) -> bool:
    commit = decided.commit
    return signer.verify(peer, accept(commit.number, commit.parent, decided.view, commit.digest), signature)


def majority_anchor(logs: Logs, voters: Voters) -> Commit | None:
    """Return the highest commit that most voters hold in their logs, or None if there is none."""
    commits = {decided.commit for log in logs.values() for decided in log}
    holders: dict[bytes, set[str]] = {commit.digest: set() for commit in commits}
    for peer, log in logs.items():
        for decided in log:
            holders[decided.commit.digest].add(peer)
    common = [commit for commit in commits if has_majority(holders[commit.digest], voters)]
    return max(common, key=lambda commit: commit.number, default=None)


def _after(head: Commit, logs: Logs, signer: AcceptSigner) -> Commit | None:
    received = (decided for log in logs.values() for decided in log)
    return next((decided.commit for decided in received if not proof_error(head, decided, signer)), None)
