"""Show what each peer has contributed to a run: a table, and one line."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from outerloop.core.contributor_rows import ContributorRow, from_maps
from outerloop.report.groups import Comparison
from outerloop.report.table import Table
from outerloop.types import printable

SHORT = 8
"""Number of characters of a peer id that are shown. All ids begin with the same letters."""
OTHERS = "all others"
"""Label of the peers that are counted together."""
COLUMNS = ["name", "peer", "samples", "share", "rounds", "first round", "last round"]
"""Headings of the columns of `contributor_cells`. The first two columns hold text, the others numbers."""
MOST = 3
"""Number of contributors that `summary_line` names."""


def tables(comparison: Comparison) -> Iterator[Table]:
    """Yield a table of the contributors to each finished run, unless the run did not count them."""
    for run in (run for group in comparison.finished for run in group.finished):
        if rows := from_maps((run.results or {}).get("contributors")):
            yield contributor_table(rows, f"Contributors to {run.path}")


def short_id(peer: str) -> str:
    """Return the end of a peer id, which is different for each peer."""
    return (f"…{peer[-SHORT:]}" if len(peer) > SHORT else peer) or OTHERS


def contributor_table(rows: Sequence[ContributorRow], title: str) -> Table:
    """Return a table with one row per contributor."""
    return Table(title, COLUMNS, [contributor_cells(row, total_of(rows)) for row in rows], words=2)


def contributor_cells(row: ContributorRow, total: int) -> list[str]:
    """Return the cells of a contributor. `total`: samples of all contributors."""
    rounds = [f"{count:,}" for count in (row.rounds, row.first_round, row.last_round)]
    return [row.name, short_id(row.peer), f"{row.samples:,}", share(row.samples, total), *rounds]


def summary_line(rows: Sequence[ContributorRow]) -> str:
    """Return one line: the number of contributors, all samples, and the shares of the first MOST contributors."""
    total = total_of(rows)
    first = ", ".join(f"{label(row)} {share(row.samples, total)}" for row in rows[:MOST])
    more = ", …" if len(rows) > MOST else ""
    return f"{len(rows)} peer{'s' * (len(rows) != 1)}, {total:,} samples: {first}{more}"


def label(row: ContributorRow) -> str:
    """Return the name of a contributor with its short peer id, or the short peer id alone."""
    return printable(f"{row.name} ({short_id(row.peer)})" if row.name else short_id(row.peer))


def total_of(rows: Collection[ContributorRow]) -> int:
    """Return the total samples of all contributors."""
    return sum(row.samples for row in rows)


def share(samples: int, total: int) -> str:
    """Return samples / total as a percentage, or "" if `total` is 0."""
    return f"{100 * samples / total:.1f} %" if total else ""
