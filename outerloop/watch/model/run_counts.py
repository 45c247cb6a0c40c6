"""Collect what peers have contributed to a run from the rows of its metrics.jsonl.

While the run lasts, rows `round` state the counts of the workers of this machine. At its end, the row `contributors`
states those of all peers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outerloop.core.contributor_rows import ContributorRow, from_maps
from outerloop.watch.model.contributors import covered, listed, self_reported
from outerloop.watch.model.page import Contributor, Counted, Peer
from outerloop.watch.model.values import count, peer_id

Row = Mapping[str, Any]


@dataclass
class RunCounts:
    """The newest counts.

    `name`: public name of the workers of this machine. `by_peer`: peer id -> counts of this peer, in which a
    `first_round` of 0 means that it is not known. `complete`: whether `by_peer` covers all peers of the run.
    """

    name: str
    by_peer: dict[str, ContributorRow] = field(default_factory=dict)
    complete: bool = False

    @property
    def last_round(self) -> int:
        """Return the last counted round, counted from 1; 0 if there is none."""
        return max((row.last_round for row in self.by_peer.values()), default=0)

    def add(self, row: Row, worker: str) -> None:
        """Update the counts from a row of a worker. `worker`: name of the worker."""
        if row["event"] == "contributors" and (rows := from_maps(row.get("contributors"))):
            self.by_peer, self.complete = {one.peer: one for one in rows}, True
        elif row["event"] == "round" and "credited_rounds" in row:
            self.credit(peer_id(worker), row)

    def credit(self, peer: str, row: Row) -> None:
        """Update the counts of one worker.

        A complete list is the last row of a run. If a later round follows, the run was resumed, and the list restarts
        with the workers of this machine.
        """
        number = count(row.get("round"))
        if self.complete and number <= self.last_round:
            return
        if self.complete:
            self.by_peer, self.complete = {}, False
        rounds, samples, known = (
            count(row["credited_rounds"]),
            count(row.get("credited_samples")),
            self.by_peer.get(peer),
        )
        first = known.first_round if known else number if rounds == 1 else 0
        last = known.last_round if known and known.rounds == rounds else number
        self.by_peer[peer] = ContributorRow(peer, self.name, rounds, samples, first, last)

    def page(self, peers: Sequence[Peer]) -> tuple[list[Contributor], Counted | None]:
        """Return the contributors, and the extent of this list. `peers`: the workers of this machine."""
        if not self.by_peer:
            return self_reported(peers)
        rows = sorted(self.by_peer.values(), key=lambda row: (not row.peer, -row.samples, row.peer))
        whose = "all peers of the run" if self.complete else "the workers of this machine"
        line = f"rounds up to {self.last_round}, of {whose}"
        return listed(rows, peers, others_online=None), covered(
            line, rows, last_round=count(self.last_round), complete=self.complete
        )
