"""Print the tables of a report in a terminal. Text wraps, numbers do not. A table that is too wide is split in two."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from outerloop.report.groups import Comparison
from outerloop.report.table import Table, results, unfinished
from outerloop.types import printable

LABEL_WIDTH = 24
"""Minimum width of a text column, in characters. If less space is left, the table is split."""


PIPE_WIDTH = 180
"""Table width in characters when the output is a file or a pipe."""


def console() -> Console:
    """Return the console for the tables of a report."""
    return Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the tables of a comparison and its notes."""
    for content in (results(comparison), unfinished(comparison)):
        for part in fit_to_width(content, console.width) if content.rows else ():
            console.print(part)
    for note in comparison.notes():
        console.print(f"note: {note}", markup=False, emoji=False, highlight=False, soft_wrap=True)


def fit_to_width(table: Table, width: int) -> Iterator[RichTable]:
    """Yield the table, split into two if it does not fit into `width` characters.

    The second part repeats the first column. A table with more than one text column is never split.
    """
    if table.words > 1 or table_width(table) <= width:
        yield to_rich_table(table)
        return
    half = len(table.columns) // 2 + 1
    yield to_rich_table(select_columns(table, range(half), table.title))
    yield to_rich_table(select_columns(table, [0, *range(half, len(table.columns))], ""))


def table_width(table: Table) -> int:
    """Return the minimum width of a table in characters."""
    columns = zip(table.columns, *table.rows, strict=True)
    numbers = [max(map(len, column)) + 3 for i, column in enumerate(columns) if i >= table.words]
    return table.words * LABEL_WIDTH + sum(numbers)


def select_columns(table: Table, columns: Sequence[int], title: str) -> Table:
    """Return a table of the selected columns. Only the first of them may be a text column."""
    pick = [[row[i] for i in columns] for row in [table.columns, *table.rows]]
    return Table(title, pick[0], pick[1:])


def to_rich_table(table: Table) -> RichTable:
    """Convert a table to a rich table. Cells are sanitized, because they may contain names chosen by other users."""
    title = table.title or None
    out = RichTable(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(table.columns):
        word = i < table.words
        out.add_column(Text(printable(name)), justify="left" if word else "right", overflow="fold", no_wrap=not word)
    for row in table.rows:
        out.add_row(*(Text(printable(cell)) for cell in row))
    return out
