"""How contributors are listed: in tables, in one line, on a page; names and files of others are only text."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outerloop.core.contributor_rows import ContributorRow, contributors, from_maps, to_maps
from outerloop.report.contributors import contributor_table, summary_line, tables
from outerloop.report.groups import Comparison
from outerloop.report.html import contributors_html
from outerloop.types import Contributor

A, B = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp", "12D3KooWQkrbANV9FKkcs48PRwK38ogmdpNNYPjyUK5n1Qy4VK5w"
COUNTS = Contributor("", 9, 100, 0, 8), Contributor(A, 3, 24, 0, 2), Contributor(B, 4, 76, 1, 4)
ROWS = contributors(COUNTS, {A: "Ada"})


def test_the_largest_comes_first_and_those_counted_together_last() -> None:
    assert [row.peer for row in ROWS] == [B, A, ""]
    assert contributor_table(ROWS, "").rows == [
        ["", "…1Qy4VK5w", "76", "38.0 %", "4", "2", "5"],
        ["Ada", "…vnc6iDEp", "24", "12.0 %", "3", "1", "3"],
        ["", "all others", "100", "50.0 %", "9", "1", "9"],
    ]
    assert summary_line(ROWS) == "3 peers, 200 samples: …1Qy4VK5w 38.0 %, Ada (…vnc6iDEp) 12.0 %, all others 50.0 %"
    assert summary_line(ROWS[1:] + ROWS + ROWS).endswith(", …")
    assert summary_line(contributors([Contributor("000", 1, 0, 0, 0)], {})) == "1 peer, 0 samples: 000 "


def test_rows_survive_a_file() -> None:
    assert from_maps(to_maps(ROWS)) == ROWS and to_maps(ROWS)[1]["name"] == "Ada"


GOOD = to_maps(ROWS)[0]


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        {},
        [7],
        [{}],
        [GOOD | {"more": 1}],
        [GOOD | {"samples": float("nan")}],
        [GOOD | {"samples": "8"}],
        [GOOD | {"rounds": True}],
        [GOOD | {"name": None}],
    ],
)
def test_a_malformed_list_is_none(value: Any) -> None:
    assert from_maps(value) == []


def test_a_name_in_a_foreign_summary_is_text_on_the_page_and_in_the_terminal() -> None:
    hostile = ContributorRow("<i>x</i>", "<script>alert(1)</script>\x1b[2J\u202e", 1, 8, 1, 1)
    run = SimpleNamespace(path=Path("runs/<b>"), results={"contributors": to_maps([hostile])})
    empty = SimpleNamespace(path=Path("runs/b"), results={"contributors": "none"})
    comparison = SimpleNamespace(finished=[SimpleNamespace(finished=[run, empty])])
    [content] = tables(cast(Comparison, comparison))
    page = contributors_html(content)
    assert "\x1b" not in page and "\u202e" not in page
    assert "<script" not in page and "<i>" not in page and "<b>" not in page and "&lt;script&gt;" in page
    assert summary_line([hostile]).isprintable()
