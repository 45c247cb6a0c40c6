"""Rows that list what each peer has contributed to a run, for everything that shows them: logs, commands and pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from outerloop.types import Contributor, printable

MAX_CONTRIBUTORS = 4096
"""Maximum number of peers that have their own counts. The counts of all further peers are added up."""
OTHERS = ""
"""Key of the entry that adds up the counts of all further peers."""


@dataclass(frozen=True)
class ContributorRow:
    """One contributor.

    peer: peer id; "" for all peers that are counted together.
    name: the public name that the peer chose, which others may have chosen as well; "" if it has none.
    rounds: number of rounds that counted the peer. samples: training samples credited to it.
    first_round, last_round: the first and the last of these rounds, counted from 1.
    """

    peer: str
    name: str
    rounds: int
    samples: int
    first_round: int
    last_round: int


@dataclass(frozen=True)
class ContributorTable:
    """The contributions of all peers to a run, as one peer states them.

    round: number, from 1, of the last round that the rows include.
    rows: one row for each contributor.
    asked, equal: number of other peers that stated their rows as of this round, and how many of these state equal rows.
    """

    round: int
    rows: list[ContributorRow]
    asked: int = 0
    equal: int = 0


def contributors(counts: Iterable[Contributor], names: Mapping[str, str]) -> list[ContributorRow]:
    """Return a row for each peer, the one with the most samples first; peers that are counted together come last.

    `names`: peer id -> public name.
    """
    rows = [
        ContributorRow(x.peer, names.get(x.peer, ""), x.rounds, x.samples, x.first_round + 1, x.last_round + 1)
        for x in counts
    ]
    return sorted(rows, key=lambda row: (not row.peer, -row.samples, -row.rounds, row.peer))


def to_maps(rows: Iterable[ContributorRow]) -> list[dict[str, Any]]:
    """Return the rows as JSON values, for metrics.jsonl and summary.json."""
    return [asdict(row) for row in rows]


def from_maps(value: Any) -> list[ContributorRow]:
    """Convert JSON values from `to_maps` back to rows. Return an empty list if they are missing or malformed.

    The values may come from a file that others wrote, so non-printable characters are escaped.
    """
    kinds = {field.name: str if field.name in ("peer", "name") else int for field in fields(ContributorRow)}
    if not isinstance(value, list) or not all(isinstance(row, dict) and row.keys() == kinds.keys() for row in value):
        return []
    if not all(type(row[name]) is kind for row in value for name, kind in kinds.items()):
        return []
    texts = ({name: printable(text) for name, text in row.items() if isinstance(text, str)} for row in value)
    return [ContributorRow(**{**row, **shown}) for row, shown in zip(value, texts, strict=True)]
