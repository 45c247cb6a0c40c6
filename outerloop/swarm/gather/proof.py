"""Proof that the run is ahead of this peer, from the logs of others.

What a log holds counts only if enough voters agree on it or signatures prove it.

    voters     two groups: the other peers of the last roster that this peer knew, and the other peers on
               exchange.allow. More than half of either group is enough. For a peer without a memory, in a run without
               an allow-list: the peers that answer
    anchor     the highest commit that more than half of the voters hold in their logs, or the one that this peer
               remembers
    newest     the last commit that the logs lead to from the anchor. Each commit on the way is signed by a majority of
               the roster that the one before it names (signer.py)
    outrun     this peer must download the others' state. More than half of the voters are shown to be past its round,
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
from outerloop.swarm.consensus.messages import CommitCertificate
from outerloop.swarm.consensus.statements import AcceptSigner, accept
from outerloop.swarm.consensus.validity import doubt
from outerloop.swarm.validation import id_of

Logs = Mapping[str, Sequence[CommitCertificate]]
"""Peer id -> the last commits of its log as it sent them, at least one."""
Voters = Sequence[frozenset[str]]
"""Groups of peer ids, none of them empty; more than half of any of them is enough."""


def voters_of(own: str, roster: Iterable[str], listed: Iterable[str]) -> Voters:
    """Return the groups of voters for the peer `own` (id): the last roster that it knew (names), and the allow-list."""
    groups = (frozenset(map(id_of, roster)) - {own}, frozenset(listed) - {own})
    return [group for group in groups if group]


def most(peers: Collection[str], voters: Voters) -> bool:
    """Return whether these peers (ids) are more than half of one of the groups."""
    return any(2 * len(group.intersection(peers)) > len(group) for group in voters)


def newest(logs: Logs, notary: AcceptSigner, *, voters: Voters = (), known: Commit | None = None) -> Commit | None:
    """Return the newest commit that is proven, `known` or a later one.

    None if most voters hold no common commit and none is known. Without `voters`, the peers that answered are the
    voters.
    """
    found = anchor(logs, voters or [frozenset(logs)])
    head = max((one for one in (found, known) if one), key=lambda commit: commit.number, default=None)
    while head is not None and (after := _after(head, logs, notary)):
        head = after
    return head


def objections(logs: Logs, head: Commit) -> dict[str, str]:
    """Return peer -> objection in one line, for peers whose logs contradict `head`, the newest commit found."""
    ends = {peer: max((one.commit for one in log), key=lambda commit: commit.number) for peer, log in logs.items()}
    text = "sent commit {}, which does not follow from what most hold"
    return {
        peer: text.format(end.number)
        for peer, end in ends.items()
        if end.number >= head.number and end.digest != head.digest
    }


def unproven(head: Commit, decided: CommitCertificate, notary: AcceptSigner) -> str:
    """Return why this is not proven to be the decided commit after `head`; empty if it is."""
    if (decided.commit.number, decided.commit.parent) != (head.number + 1, head.digest):
        return f"commit {decided.commit.number} does not follow the local commit {head.number}"
    return doubt(head, decided, notary)


def ahead(number: int, logs: Logs, notary: AcceptSigner, *, voters: Voters) -> set[str]:
    """Return voters (ids) that are past round `number`: they sent a later commit, or signed an accept of one.

    Stops checking once the voters found are most. An honest peer accepts a commit of round r only once it knows all
    before it. From one peer's log, at most one signature of each voter is checked, so that a log with more forged
    signatures causes no more work.
    """
    told = {peer: [one for one in log if one.commit.number > number] for peer, log in logs.items()}
    counted = frozenset[str]().union(*voters)
    found = counted.intersection(peer for peer, later in told.items() if later)
    for later in told.values():
        shown = {id_of(peer): (peer, signature, one) for one in later for peer, signature in one.accepts}
        for voter in counted.intersection(shown) - found:
            if most(found, voters):
                return set(found)
            peer, signature, one = shown[voter]
            if notary.verify(
                peer, accept(one.commit.number, one.commit.parent, one.view, one.commit.digest), signature
            ):
                found |= {voter}
    return set(found)


def anchor(logs: Logs, voters: Voters) -> Commit | None:
    """Return the highest commit that most voters hold in their logs, or None if there is none."""
    commits = {one.commit for log in logs.values() for one in log}
    holders: dict[bytes, set[str]] = {commit.digest: set() for commit in commits}
    for peer, log in logs.items():
        for one in log:
            holders[one.commit.digest].add(peer)
    held = [commit for commit in commits if most(holders[commit.digest], voters)]
    return max(held, key=lambda commit: commit.number, default=None)


def _after(head: Commit, logs: Logs, notary: AcceptSigner) -> Commit | None:
    told = (one for log in logs.values() for one in log)
    return next((one.commit for one in told if not unproven(head, one, notary)), None)
