"""Tables in a terminal: parts that fit into its width, with all figures and row names."""

import io

import pytest
from rich.console import Console

from outerloop.report.table import Table
from outerloop.report.terminal import fit_to_width, parts

COLUMNS = ["recipe", "bits/param/round", "val_loss", "sent/worker", "front", "tokens", "wall_s"]
ROWS = [
    ["sparseloco rounds=3", "0.305 ± 0.001", "4.789 ± 0.101", "102 kB", "first", "24.6 k", "44.7 s"],
    ["a-recipe-with-a-name-of-forty-characters", "0.412", "5.123", "987 MB", "second", "1.2 T", "1,234.5 s"],
]
TABLE = Table("Finished runs", COLUMNS, ROWS)


def lines_at(width):
    """The lines of the table in a terminal of this width."""
    console = Console(file=io.StringIO(), width=width)
    for part in fit_to_width(TABLE, width):
        console.print(part)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [46, 60, 80, 120, 180])
def test_no_figure_is_cut_and_every_part_names_its_rows(width):
    lines = lines_at(width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert all(cell in text for row in [COLUMNS, *ROWS] for cell in row[1:])
    found = len(parts(TABLE, width))
    assert text.count("sparseloco rounds=3") == text.count("a-recipe-with-a-name-of-") == found
    assert text.count("Finished runs") == 1


def test_a_part_holds_the_columns_that_fit():
    """The first column takes 24, the others 3 more than 16, 13, 11, 6, 6 and 9; the end of a line is 2 characters."""
    assert parts(TABLE, 24 + 2 + 19 + 16 + 14 + 9 + 9 + 12) == [[1, 2, 3, 4, 5, 6]]
    assert parts(TABLE, 24 + 2 + 19 + 16 + 14 + 9 + 9 + 12 - 1) == [[1, 2, 3, 4, 5], [6]]
    assert parts(TABLE, 24 + 2 + 19) == [[1], [2], [3], [4, 5], [6]]
    assert parts(TABLE, 10) == [[1], [2], [3], [4], [5], [6]]
