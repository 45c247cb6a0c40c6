"""What others wrote does not move a cursor: it is shown with escapes, in one line."""

import io
import json
import logging
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file

from outerloop.commands.doctor.finding import Finding
from outerloop.config.options.setting_differences import refuse_different
from outerloop.config.peer_check import peer_difference
from outerloop.inner.export import ORDER
from outerloop.report import terminal
from outerloop.report.table import Table
from outerloop.sinks.console import Terminal
from outerloop.swarm.access.access_control import RejectionLog
from outerloop.types import UserError, printable
from tests.support.inspect_command import inspect, payload
from tests.support.sink_rows import run_info

HOSTILE = "w\x1b[2J\x07\r\n\u202e\x9b\ud800"
SHOWN = r"w\x1b[2J\x07\r\n\u202e\x9b\ud800"


def test_every_character_that_is_not_printed_is_an_escape():
    assert printable(HOSTILE) == SHOWN and printable("peer-π 001") == "peer-π 001" and printable("") == ""
    every = "".join(map(chr, range(0x3000)))
    assert printable(every).isprintable() and printable(printable(every)) == printable(every)


def refused(caplog):
    with caplog.at_level(logging.WARNING):
        RejectionLog().note("requests", HOSTILE, HOSTILE)
    return caplog.text.rstrip("\n")


def setting(caplog):
    with pytest.raises(UserError) as error:
        refuse_different({}, {HOSTILE: 1}, "001-x")
    return str(error.value)


def parameter(caplog):
    told = {"settings": {}, "shapes": {HOSTILE: HOSTILE}}
    return peer_difference({"settings": {}, "shapes": {}}, told, "001-x")


def status_row(caplog):
    out = io.StringIO()
    terminal_of_run = Terminal()
    terminal_of_run.start(run_info(Path("run"), console=Console(file=out, width=200)))
    terminal_of_run.write({"event": "status", "worker": 0, "step": 0, "text": HOSTILE})
    return out.getvalue().rstrip("\n")


def finding(caplog):
    return Finding("peer", False, HOSTILE).line()


def report_table(caplog):
    console = Console(file=io.StringIO(), width=200)
    for part in terminal.fit_to_width(Table("runs", ["run", "val_loss"], [[HOSTILE, "1.0"]]), 200):
        console.print(part)
    return next(line for line in console.file.getvalue().splitlines() if "[2J" in line)


@pytest.mark.parametrize("shown", [refused, setting, parameter, status_row, finding, report_table])
def test_where_others_words_are_shown(shown, caplog):
    line = shown(caplog)
    assert SHOWN in line and line.isprintable()


def test_the_names_of_a_foreign_model_in_inspect(tmp_path, monkeypatch, capsys):
    name = "w\x1b[2J"
    file = tmp_path / "m.safetensors"
    save_file({name: torch.zeros(5, 8)}, str(file), metadata={ORDER: json.dumps([name])})
    code, out, _ = inspect(monkeypatch, capsys, payload(tmp_path, {name: torch.Size([5, 8])}), "--model", file)
    assert code == 0 and r"w\x1b[2J" in out and "\x1b" not in out


def test_a_mistake_that_quotes_others_is_printable(monkeypatch, capsys):
    code, _, err = inspect(monkeypatch, capsys, "no\x1b[2Jfile")
    assert code == 2 and r"no\x1b[2Jfile" in err and "\x1b" not in err
