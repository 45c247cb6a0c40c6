"""Sources of pages: a run directory that grows, a sweep, and what the command makes of its argument."""

from __future__ import annotations

import json
import math
import os
from types import SimpleNamespace

import jsonschema
import pytest

from outerloop.commands import main
from outerloop.commands.watch.sources import folder_source, settings_of
from outerloop.config.manifest.content import RunManifest
from outerloop.core.contributor_rows import ContributorRow, ContributorTable
from outerloop.watch import rows
from outerloop.watch.model.schema import json_schema
from outerloop.watch.rows import RowFile
from outerloop.watch.run_dir import RunDirectory
from outerloop.watch.swarm import Swarm
from outerloop.watch.sweep_dir import SweepDirectory
from tests.support.watch_rows import HOSTILE, run_rows, write_run


def lines_of(file: RowFile) -> tuple[list[str], bool]:
    batches = list(file.read())
    return [line for batch in batches for line in batch.lines], any(batch.restarted for batch in batches)


def test_rows_are_read_once_and_only_when_they_are_complete(tmp_path):
    path = tmp_path / "rows"
    file = RowFile(path)
    assert lines_of(file) == ([], False) and file.updated_s() is None
    path.write_text("a\nb\nhal")
    assert lines_of(file) == (["a", "b"], True)
    with path.open("a") as out:
        out.write("f\n\nc\n")
    assert lines_of(file) == (["half", "c"], False)
    assert lines_of(file) == ([], False)


def test_a_file_that_is_replaced_or_cut_is_read_from_the_beginning(tmp_path):
    path = tmp_path / "rows"
    path.write_text("a\nb\n")
    file = RowFile(path)
    lines_of(file)
    (tmp_path / "new").write_text("a\nb\nc\n")
    (tmp_path / "new").replace(path)
    assert lines_of(file) == (["a", "b", "c"], True)
    path.write_text("a\n")
    assert lines_of(file) == (["a"], True)


def test_lines_longer_than_a_piece_are_joined_and_endless_ones_are_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "PIECE_BYTES", 4)
    monkeypatch.setattr(rows, "MAX_LINE_BYTES", 20)
    path = tmp_path / "rows"
    path.write_text("0123456789\n" + "x" * 100 + "\nend\n")
    read, _ = lines_of(RowFile(path))
    assert read[0] == "0123456789" and read[-1] == "end" and max(map(len, read)) <= 20 + 4


def test_a_run_directory_is_followed_while_it_grows(tmp_path):
    rows = run_rows(3)
    folder = write_run(tmp_path / "run", rows[:-10])
    source = RunDirectory(folder)
    before = source.read()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows[-10:]) + "not json\n")
    after = source.read()
    assert before["run"]["round"] < after["run"]["round"] == 3 and after["run"]["state"] == "running"
    assert after["peers"] == RunDirectory(folder).read()["peers"], "the same as read at once"


def test_a_resumed_run_starts_again_from_its_rows(tmp_path):
    folder = write_run(tmp_path / "run", run_rows(3))
    source = RunDirectory(folder)
    assert source.read()["run"]["round"] == 3
    (tmp_path / "rows").write_text("".join(json.dumps(row) + "\n" for row in run_rows(1)))
    (tmp_path / "rows").replace(folder / "metrics.jsonl")
    assert source.read()["run"]["round"] == 1


def test_a_run_that_has_not_written_anything_yet_is_starting(tmp_path):
    source = RunDirectory(tmp_path)
    assert source.read()["run"]["state"] == "starting"
    write_run(tmp_path / "other", run_rows(2))
    for file in (tmp_path / "other").iterdir():
        file.rename(tmp_path / file.name)
    assert source.read()["run"]["rounds"] == 10, "its settings are read once they are there"


def test_a_run_without_settings_reads_each_row_once(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run", run_rows(2))
    (folder / "config.yaml").unlink()
    source = RunDirectory(folder)
    assert source.read()["run"]["round"] == 2
    monkeypatch.setattr(source.rows, "restart", lambda: pytest.fail("the rows are read again"))
    assert source.read()["run"]["round"] == 2


def test_results_on_disk_are_named_relative_to_the_run(tmp_path):
    folder = write_run(tmp_path / "run", run_rows(3), finished=True)
    for step in (4, 12, 8):
        (folder / f"checkpoints/step-{step:08d}").mkdir(parents=True)
        (folder / f"checkpoints/step-{step:08d}/sealed").touch()
    (folder / "checkpoints/step-00000099").mkdir()
    (folder / "hf").mkdir()
    run = RunDirectory(folder).read()["run"]
    assert run["state"] == "finished"
    assert {link["name"]: link["path"] for link in run["links"]} == {
        "last checkpoint": "checkpoints/step-00000012",
        "model": "hf",
        "summary": "summary.json",
        "settings": "config.yaml",
    }


def sweep(folder):
    write_run(folder / "0", run_rows(3), finished=True)
    write_run(folder / "1", run_rows(2))
    (folder / "1/died.json").write_text(json.dumps({"why": HOSTILE}))
    return folder


def test_a_sweep_shows_the_tables_of_the_report_and_runs_that_died(tmp_path):
    page = SweepDirectory(sweep(tmp_path)).read()
    jsonschema.validate(page, json_schema())
    assert page["kind"] == "sweep" and page["sweep"] is not None
    results, unfinished, _ = page["sweep"]["tables"]
    assert results["rows"][0][:3] == ["sparseloco", "1", "2.000"]
    assert (
        unfinished["rows"][0][0] == "1"
        and unfinished["rows"][0][2].startswith("<script>")
        and unfinished["rows"][0][2].isprintable()
    )
    assert page["sweep"]["pareto"] == [{"label": "sparseloco", "bytes": 750.0, "loss": 2.0, "runs": 1, "front": True}]


def test_a_run_that_cannot_be_read_is_listed_as_unfinished(tmp_path):
    write_run(tmp_path / "good", run_rows(3), finished=True)
    write_run(tmp_path / "bad", run_rows(3), finished=True)
    (tmp_path / "bad/metrics.jsonl").unlink()
    (tmp_path / "bad/metrics.jsonl").mkdir()
    results, unfinished, _ = SweepDirectory(tmp_path).read()["sweep"]["tables"]
    assert len(results["rows"]) == 1
    assert [(row[0], row[2]) for row in unfinished["rows"]] == [
        ("bad", "metrics.jsonl cannot be read (Is a directory)")
    ]


def test_only_runs_that_have_changed_are_read_again(tmp_path, monkeypatch):
    source = SweepDirectory(sweep(tmp_path))
    source.read()
    read: list[object] = []
    monkeypatch.setattr("outerloop.watch.sweep_dir.read", read.append)
    source.read()
    assert read == []


def test_a_sweep_is_running_as_long_as_an_unfinished_run_has_new_rows(tmp_path):
    write_run(tmp_path / "0", run_rows(3))
    source = SweepDirectory(tmp_path)
    assert source.read()["run"]["state"] == "running"
    for file in (tmp_path / "0").iterdir():
        os.utime(file, (1e9, 1e9))
    page = source.read()
    assert page["run"]["state"] == "finished" and page["sweep"] is not None
    assert page["sweep"]["tables"][1]["rows"][0][2] == "stopped after round 3"


def test_a_diverged_run_of_a_sweep_is_shown_as_nan(tmp_path):
    folder = sweep(tmp_path) / "0"
    numbers = json.loads((folder / "summary.json").read_text()) | {"val_loss": math.nan}
    (folder / "summary.json").write_text(json.dumps(numbers))
    page = SweepDirectory(tmp_path).read()
    jsonschema.validate(json.loads(json.dumps(page, allow_nan=False)), json_schema())
    assert page["sweep"] is not None and page["sweep"]["pareto"][0]["loss"] == "nan"


def test_a_swarm_source_takes_what_the_visitor_sees():
    evidence = SimpleNamespace(peer="000-x", why="two votes")
    counts = ContributorTable(3, [ContributorRow("x", "Ada", 3, 60, 1, 3)])
    observation = SimpleNamespace(
        seen=lambda: [], links=lambda: {}, expelled=lambda: [evidence], contributions=lambda: counts
    )
    page = Swarm(observation, run="mine", settings={}).read()
    assert (page["kind"], page["run"]["name"]) == ("swarm", "mine")
    assert [(one["peer"], one["name"], one["online"]) for one in page["contributors"]] == [("x", "Ada", False)]


def test_a_folder_is_a_run_or_contains_runs(tmp_path):
    sweep(tmp_path)
    assert isinstance(folder_source(tmp_path / "0"), RunDirectory)
    assert isinstance(folder_source(tmp_path), SweepDirectory)


def test_settings_come_from_the_manifest_and_unknown_options_stay_as_they_are():
    manifest = RunManifest(version="0", run="r", fingerprint="0" * 64, options={"recipe": "diloco", "rounds": 7})
    settings = settings_of(manifest)
    assert (settings["recipe"], settings["rounds"], settings["inner.seq_len"]) == ("diloco", 7, 128)
    odd = RunManifest(version="0", run="r", fingerprint="0" * 64, options={"recipe": "nope"})
    assert settings_of(odd) == {"recipe": "nope"} and settings_of(None) == {}


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ([], "run outerloop watch RUN_DIR"),
        (["nowhere"], "nowhere is neither a folder nor an address"),
        (["x" * 300], "cannot be read (File name too long): correct the name"),
        (["."], "no run in or under ."),
        ([".", "--port", "99999"], "--port 99999 is not a port"),
        ([".", "--host", "here"], "--host here is not an IP address"),
        (["/ip4/192.0.2.1/tcp/99999999/p2p/x"], "not a full address"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments, answer, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["outerloop", "watch", *arguments])
    assert main.main() == 2
    err = capsys.readouterr().err
    assert answer in err and err.count("\n") == 1
