"""Proof that the run is further than this peer knows: what others tell counts only where so many of them say the same.

    voters     the others of the roster that this peer last knew, and the others on exchange.allow; more than half of
               either group is enough. A peer without a memory, in a run without a list: those that answer
    anchor     the highest commit that more than half of the voters hold in their logs, or what this peer remembers
    newest     from there on as far as the logs lead: each commit is signed by a majority of the roster that the one
               before it names (signer.py)
    outrun     this peer needs the others' state: more than half of the voters are shown to be past its round, by their
               own answer or by their signed accept of a later commit, no log reaches back to its head, and not most of
               its own roster is at the same round

What is trusted, since no log reaches back to genesis for long (memory.ROUNDS_KEPT): that more than half of the voters
are honest. Everything after the anchor is proven by signatures. One vote a peer id; this peer itself is no voter.

Fewer than half of the voters
    cannot    name another roster, another history, or a round that is not decided; nor make a peer that is up to date
              believe that it is behind. What they forge is refused by name
    can       hold back their logs, or tell old ones: a newcomer may start at an earlier commit, and follows from there
    can       keep a newcomer waiting where so many others are silent that no group has more than half left

The members that name the sitting are believed alike (formation.py).

In a run without an allow-list a newcomer has nothing to count by but who answers, and anybody can make many identities:
more than half of those that answer can name any history, and where only one peer answers its word is the anchor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.consensus.messages import CommitCertificate
from outerloop.swarm.consensus.statements import AcceptSigner, accept
from outerloop.swarm.consensus.validity import doubt
from outerloop.swarm.validation import id_of

Logs = Mapping[str, Sequence[CommitCertificate]]
"""Peer id -> the last commits as it tells them, at least one."""
Voters = Sequence[frozenset[str]]
"""Groups of peer ids, none of them empty; more than half of any of them is enough."""


def voters_of(own: str, roster: Iterable[str], listed: Iterable[str]) -> Voters:
    """Return whose word counts for the peer with this id: of the roster (names) that it last knew, and of the list."""
    groups = (frozenset(map(id_of, roster)) - {own}, frozenset(listed) - {own})
    return [group for group in groups if group]


def most(peers: Collection[str], voters: Voters) -> bool:
    """Return whether these are more than half of one of the groups."""
    return any(2 * len(group.intersection(peers)) > len(group) for group in voters)


def newest(logs: Logs, notary: AcceptSigner, *, voters: Voters = (), known: Commit | None = None) -> Commit | None:
    """Return the commit to go by, `known` or a later one; None: no commit is held by most voters, and none is known.

    Without voters those that answered are.
    """
    found = anchor(logs, voters or [frozenset(logs)])
    head = max((one for one in (found, known) if one), key=lambda commit: commit.number, default=None)
    while head is not None and (after := _after(head, logs, notary)):
        head = after
    return head


def objections(logs: Logs, head: Commit) -> dict[str, str]:
    """Who tells something else than what was found to be the newest commit, and what: peer -> one line."""
    ends = {peer: max((one.commit for one in log), key=lambda commit: commit.number) for peer, log in logs.items()}
    text = "tells commit {}, which does not follow from what most hold"
    return {
        peer: text.format(end.number)
        for peer, end in ends.items()
        if end.number >= head.number and end.digest != head.digest
    }


def unproven(head: Commit, decided: CommitCertificate, notary: AcceptSigner) -> str:
    """Why this is not known to be the decided commit after `head`; empty when it is."""
    if (decided.commit.number, decided.commit.parent) != (head.number + 1, head.digest):
        return f"commit {decided.commit.number} does not follow commit {head.number} as it is known here"
    return doubt(head.roster, decided, notary)


def ahead(number: int, logs: Logs, notary: AcceptSigner, *, voters: Voters) -> set[str]:
    """Return voters (ids) that are past round `number`, until they are most: who tells a later commit, or signed one.

    An honest peer accepts a commit of round r only once it knows all before it. Of what one peer tells, at most one
    signature of each voter is checked, so that a liar who makes up more of them causes no more work.
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
            if notary.right(peer, accept(one.commit.number, one.commit.parent, one.view, one.commit.digest), signature):
                found |= {voter}
    return set(found)


def anchor(logs: Logs, voters: Voters) -> Commit | None:
    """Return the highest commit that most voters hold in their logs; None: there is none."""
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
