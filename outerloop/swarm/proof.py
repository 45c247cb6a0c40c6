"""The newest commit that a newcomer can believe, from the logs that the others tell it.

    anchor    the highest commit that more than half of the peers that answered hold in their logs
    newest    from there on as far as the logs lead: each commit is signed by a majority of the roster that the one
              before it names (notary.py)

What is trusted, since no log reaches back to genesis for long (memory.ROUNDS_KEPT): that of the peers that answered,
all of them in exchange.allow, more than half are honest. Everything after the anchor is proven by signatures.

Within the allow-list, with fewer than half of those that answer, an attacker
    cannot    name another roster, another history, or a round that is not decided: what it forges is not held by most
              of them, nor signed by a majority of a roster that follows from what they hold; it is refused by name
    can       hold back its log, or tell an old one: the newcomer may start at an earlier commit, and follows from there
    can       keep a newcomer waiting where it is half of those that answer, or more: nothing is held by most then

The members that name the sitting are believed alike (membership.py): the list of more than half of those that have
formed. While a run forms one that says it has is believed, and whoever is in the list can keep a run from forming.

With more than half of those that answer it can name any history. Where only one peer answers, its word is the anchor;
and a run without an allow-list has nothing to count by, for anybody can make many identities.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from outerloop.swarm.ballots import Decided
from outerloop.swarm.commits import Commit
from outerloop.swarm.scrutiny import Notary, doubt

Logs = Mapping[str, Sequence[Decided]]
"""Peer -> the last commits as it tells them, at least one."""


def newest(logs: Logs, notary: Notary) -> Commit | None:
    """The commit to go by; None: no commit is held by most of those that answered."""
    head = _anchor(logs)
    while head is not None and (after := _after(head, logs, notary)):
        head = after
    return head


def objections(logs: Logs, head: Commit) -> dict[str, str]:
    """Who tells something else than what was found to be the newest commit, and what: peer -> one line."""
    ends = {peer: max((one.commit for one in log), key=lambda commit: commit.number) for peer, log in logs.items()}
    text = "tells commit {}, which does not follow from what most of those that answer hold"
    return {
        peer: text.format(end.number)
        for peer, end in ends.items()
        if end.number >= head.number and end.digest != head.digest
    }


def unproven(head: Commit, decided: Decided, notary: Notary) -> str:
    """Why this is not known to be the decided commit after `head`; empty when it is."""
    if (decided.commit.number, decided.commit.parent) != (head.number + 1, head.digest):
        return f"commit {decided.commit.number} does not follow commit {head.number} as it is known here"
    return doubt(head.roster, decided, notary)


def _anchor(logs: Logs) -> Commit | None:
    commits = {one.commit for log in logs.values() for one in log}
    holders = Counter(digest for log in logs.values() for digest in {one.commit.digest for one in log})
    held = [commit for commit in commits if 2 * holders[commit.digest] > len(logs)]
    return max(held, key=lambda commit: commit.number, default=None)


def _after(head: Commit, logs: Logs, notary: Notary) -> Commit | None:
    told = (one for log in logs.values() for one in log)
    return next((one.commit for one in told if not unproven(head, one, notary)), None)
