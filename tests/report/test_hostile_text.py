"""Text that others chose, such as settings and folder names, is text: in the page, in figures and in the terminal."""

import io
import os
import re
from pathlib import Path

import pytest
from rich.console import Console

from outerloop.commands import report as command
from outerloop.report import runs, terminal
from outerloop.report.groups import Comparison
from outerloop.report.table import Table
from tests.report.test_report import make_run

TAG = "<img src=x onerror=alert(1)>"
ESCAPES = r"\e]0;title\a\u202e\ud800"
"""As in a YAML string: an escape sequence that sets the title of a terminal, and a character that UTF-8 does not have.
"""


def written_report(folder: Path) -> str:
    assert command.main([str(folder)]) == 0
    return (folder / "report/report.html").read_text()


@pytest.fixture
def hostile_runs(tmp_path):
    """Two groups of the baseline, so that the title of the results names settings, values and labels."""
    for name, value in (("a", 1), ("b", 2)):
        text = f'"{TAG}{ESCAPES}{value}"'
        make_run(tmp_path / name, [5, value], recipe=f'"ddp{TAG}"', extra=f'"h{TAG}": {text}\n')
    make_run(tmp_path / "c", [5, 3], recipe=f'"other{TAG}{ESCAPES}"', extra=f'"h{TAG}": 3\n')
    return tmp_path


def test_settings_recipes_and_labels_are_text_on_the_page_and_in_figures(hostile_runs, capfd):
    assert command.main([str(hostile_runs), "--baseline", f"ddp{TAG}"]) == 0
    page = (hostile_runs / "report/report.html").read_text()
    [title] = re.findall("<h2>(Finished runs.*?)</h2>", page)
    assert "ddp&lt;img src=x" in title and "equal h&lt;img" in title and "those of other&lt;img" in title
    assert "<img src=x" not in page
    out, err = capfd.readouterr()
    assert not re.search(r"[\x1b\x07\u202e]", out) and "\\x1b]0;title" in out
    assert err == "", "warnings of matplotlib about glyphs that its font lacks"


@pytest.mark.parametrize("title", ["[/oops]", "[bold]x[/bold]", "a\x1b]0;title\x07b"])
def test_the_title_of_a_table_is_text_in_the_terminal(title):
    console = Console(file=io.StringIO(), width=80)
    for part in terminal.fit_to_width(Table(title, ["run"], [[80 * "x"]]), 80):
        console.print(part)
    shown = console.file.getvalue().splitlines()[0]
    assert shown.strip() == title.replace("\x1b", r"\x1b").replace("\x07", r"\x07")


def test_a_note_names_a_folder_without_moving_the_cursor(tmp_path):
    folder = make_run(tmp_path / "a\x1b[2J", [5, 3])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("damaged\n")
    console = Console(file=io.StringIO(), width=400)
    terminal.print_comparison(Comparison([runs.read(folder)], baseline=None), console)
    assert r"note: " in console.file.getvalue() and "\x1b" not in console.file.getvalue()


def test_a_folder_name_that_is_not_utf_8_does_not_end_the_report(tmp_path, capsys):
    folder = make_run(tmp_path / "run", [5, 3]).rename(tmp_path / os.fsdecode(b"run\xff"))
    assert r"run\udcff" in written_report(tmp_path)
    assert command.main([str(folder), "--out", str(tmp_path / os.fsdecode(b"\xfe"))]) == 0
    assert r"\udcfe/report.html" in capsys.readouterr().out


def test_an_error_that_cannot_be_encoded_does_not_end_the_report(tmp_path):
    error = '{"event": "error", "worker": 0, "step": 0, "wall_s": 1.0, "text": "Traceback\\nOSError: \\ud800"}\n'
    folder = make_run(tmp_path / "run", [5, 3], finished=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(error)
    assert r"OSError: \ud800" in written_report(tmp_path)
