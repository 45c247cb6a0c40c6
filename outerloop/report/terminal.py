"""Print the tables of a report in a terminal. Text wraps, numbers do not. A table that is too wide is split into
parts.
"""

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
"""Number of characters to which a longer first column shrinks before the table is split."""


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
        console.print(printable(f"note: {note}"), markup=False, emoji=False, highlight=False, soft_wrap=True)


def fit_to_width(table: Table, width: int) -> Iterator[RichTable]:
    """Yield the table, split into parts if it does not fit into `width` characters.

    Every part repeats the first column. A table with more than one text column is never split.
    """
    if table.words > 1:
        yield to_rich_table(table)
        return
    for number, columns in enumerate(parts(table, width)):
        yield to_rich_table(select_columns(table, [0, *columns], "" if number else table.title))


def parts(table: Table, width: int) -> list[list[int]]:
    """Return the indices of the number columns in each part of a table: as many as fit into `width`, at least one.

    Each column takes 3 characters more than its widest cell, except for the last one, which takes 2 more.
    """
    label, *numbers = (max(map(len, column)) + 3 for column in zip(table.columns, *table.rows, strict=True))
    left = room = width + 1 - min(label, LABEL_WIDTH + 3)
    found: list[list[int]] = [[]]
    for index, needed in enumerate(numbers, 1):
        if needed > left and found[-1]:
            found.append([])
            left = room
        found[-1].append(index)
        left -= needed
    return found


def select_columns(table: Table, columns: Sequence[int], title: str) -> Table:
    """Return a table of the selected columns. Only the first of them may be a text column."""
    pick = [[row[i] for i in columns] for row in [table.columns, *table.rows]]
    return Table(title, pick[0], pick[1:])


def to_rich_table(table: Table) -> RichTable:
    """Convert a table to a rich table. All text is sanitized, because it may contain names chosen by other users."""
    title = Text(printable(table.title), style="bold") if table.title else None
    out = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(table.columns):
        word = i < table.words
        out.add_column(Text(printable(name)), justify="left" if word else "right", overflow="fold", no_wrap=not word)
    for row in table.rows:
        out.add_row(*(Text(printable(cell)) for cell in row))
    return out
