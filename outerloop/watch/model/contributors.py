"""List what each peer has contributed to a run, the peer with the most samples first.

All peers of a run keep the same counts (core/ledger.py). They are read from a peer, or from the run directory
(run_counts.py). If neither has any, each worker of this machine is listed with the samples that it counts itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from outerloop.core.contributor_rows import ContributorRow, ContributorTable
from outerloop.watch.model.page import Contributor, Counted, Peer
from outerloop.watch.model.values import count, text

MAX_CONTRIBUTORS = 1000
"""Maximum number of contributors on a page."""
AWAY = ("silent", "finished", "left", "died", "expelled")
"""States of a peer that is not online."""


def listed(rows: Sequence[ContributorRow], peers: Sequence[Peer], *, others_online: bool | None) -> list[Contributor]:
    """Return the first MAX_CONTRIBUTORS contributors.

    `peers`: the peers of the page, whose states show which contributors are online. `others_online`: whether
    contributors that are not among `peers` are online; None if this is not known.
    """
    online = {peer["id"]: peer["state"] not in AWAY for peer in peers}
    return [
        {
            "peer": text(row.peer),
            "name": text(row.name),
            "samples": count(row.samples),
            "rounds": count(row.rounds),
            "first_round": count(row.first_round) or None,
            "last_round": count(row.last_round) or None,
            "online": online.get(row.peer, others_online) if row.peer else None,
        }
        for row in rows[:MAX_CONTRIBUTORS]
    ]


def stated_by_a_peer(contributions: ContributorTable) -> Counted:
    """Return the extent of the counts that one peer of a swarm has reported."""
    line = f"rounds 1 to {contributions.round}"
    if contributions.asked:
        line += f"; {contributions.equal} of {contributions.asked} other peers state the same counts"
    return {
        **covered(line, contributions.rows, last_round=contributions.round, complete=True),
        "asked": contributions.asked,
        "equal": contributions.equal,
    }


def covered(line: str, rows: Sequence[ContributorRow], *, last_round: int | None, complete: bool) -> Counted:
    """Return the extent of the counts in `rows`. `line`: this extent in words."""
    return {
        "text": line,
        "round": last_round,
        "peers": len(rows),
        "samples": count(sum(count(row.samples) for row in rows)),
        "complete": complete,
        "asked": 0,
        "equal": 0,
    }


def self_reported(peers: Sequence[Peer]) -> tuple[list[Contributor], Counted | None]:
    """Return the workers of this machine, each with its own count of its samples, and the extent of this list.

    Return ([], None) if no worker has counted any samples.
    """
    rows = [
        ContributorRow(peer["id"], peer["public_name"], 0, peer["samples"], 0, 0) for peer in peers if peer["samples"]
    ]
    rows.sort(key=lambda row: (-row.samples, row.peer))
    entries: list[Contributor] = [{**entry, "rounds": None} for entry in listed(rows, peers, others_online=None)]
    line = "samples that the workers of this machine have trained on, by their own count"
    return entries, covered(line, rows, last_round=None, complete=False) if rows else None
