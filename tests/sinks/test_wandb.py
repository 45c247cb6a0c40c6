"""What Weights & Biases gets: every row, in whatever order rows come, under the names that the environment or the run
gives.
"""

import json
import os
import struct
import subprocess
import sys
from types import SimpleNamespace

import pytest

from outerloop.sinks.wandb import Wandb, has_key
from outerloop.types import UserError
from tests.support.sink_rows import CHARTS, ROWS, SUMMARY, play, run_info


class MonotoneRun:
    """A run that drops what comes with a lower step than before, as wandb's do; without one, each row gets its own."""

    url = None
    id = "id"

    def __init__(self):
        self.step, self.rows, self.axes, self.summary, self.artifacts = -1, [], {}, {}, {}
        self.alerts = []

    def define_metric(self, name, step_metric=None):
        self.axes[name] = step_metric

    def log(self, values, step=None):
        step = self.step + 1 if step is None else step
        if step >= self.step:
            self.step = step
            self.rows.append(values)

    def log_artifact(self, path, name, type):
        self.artifacts[name] = path

    def alert(self, title, text, level, wait_duration):
        self.alerts.append((title, text, level, wait_duration))

    def finish(self, exit_code):
        self.exit_code = exit_code


@pytest.fixture
def wandb(monkeypatch):
    """A stub of the package: `run` is the run, `given` what it was started with."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    stub = SimpleNamespace(run=MonotoneRun())

    def init(**settings):
        stub.given = settings
        return stub.run

    stub.init = init
    monkeypatch.setitem(sys.modules, "wandb", stub)
    monkeypatch.setenv("NETRC", "/nowhere")
    return stub


def test_every_row_is_kept_with_steps_tokens_and_bytes(tmp_path, wandb):
    play(Wandb(), run_info(tmp_path), *ROWS)
    assert wandb.run.rows == CHARTS
    assert wandb.run.axes == {f"{charts}/*": "inner_step" for charts in ("outer", "train", "val")}
    assert wandb.run.exit_code == 1 and not wandb.run.summary, "it did not finish"


def test_the_run_is_named_after_the_job_of_the_sweep(tmp_path, wandb):
    play(Wandb(), run_info(tmp_path))
    expected = {"project": "outerloop", "name": "sparseloco-seed0", "group": "sweep", "job_type": "sparseloco"}
    expected |= {"mode": "offline", "tags": ["a", "b"], "settings": {"console": "off", "quiet": True}}
    assert {key: wandb.given[key] for key in expected} == expected
    play(Wandb(), run_info(tmp_path))
    assert len(wandb.given["id"]) == 32 and (tmp_path / "wandb-id.txt").read_text() == wandb.given["id"]


def test_tags_have_a_length_that_wandb_takes(tmp_path, wandb):
    """wandb refuses a run with an empty tag, or with one of more than 64 characters."""
    play(Wandb(), run_info(tmp_path, tags=("sparseloco", "", "x=" + 80 * "y")))
    assert wandb.given["tags"] == ["sparseloco", "x=" + 62 * "y"]


def test_the_environment_comes_before_the_run_and_an_option_before_both(tmp_path, wandb, monkeypatch):
    told = ["PROJECT", "RUN_GROUP", "NAME", "JOB_TYPE", "TAGS", "MODE", "DIR", "CONSOLE"]
    for name in told:
        monkeypatch.setenv(f"WANDB_{name}", "theirs")
    play(Wandb(name="mine"), run_info(tmp_path))
    for option in ("project", "entity", "group", "job_type", "tags", "mode", "dir"):
        assert wandb.given[option] is None, option
    assert wandb.given["name"] == "mine" and wandb.given["settings"] == {"quiet": True}


def test_a_run_is_online_if_there_is_a_key_for_this_server(tmp_path, wandb, monkeypatch):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine git.example login me password x\n")
    monkeypatch.setenv("NETRC", str(netrc))
    assert not has_key()
    monkeypatch.setenv("WANDB_BASE_URL", "https://git.example")
    assert has_key()
    play(Wandb(), run_info(tmp_path))
    assert wandb.given["mode"] == "online"
    monkeypatch.delenv("WANDB_BASE_URL")
    monkeypatch.setenv("WANDB_API_KEY", "x")
    assert has_key()


def test_the_results_become_the_summary_and_files_artifacts(tmp_path, wandb):
    (tmp_path / "hf").mkdir()
    play(Wandb(artifacts=True), run_info(tmp_path), *ROWS, SUMMARY)
    assert wandb.run.summary["val_loss"] == 3.5 and wandb.run.summary["utilization"] == 0.9
    assert wandb.run.exit_code == 0
    assert wandb.run.artifacts == {"model-id": str(tmp_path / "hf")}


def test_a_round_of_the_first_worker_that_failed_is_an_alert(tmp_path, wandb):
    play(Wandb(), run_info(tmp_path), *ROWS)
    assert not wandb.run.alerts
    failed = {"event": "round", "step": 30, "round": 3, "failed": "no majority", "wait_s": 9.0}
    play(Wandb(), run_info(tmp_path), failed | {"worker": 0}, failed | {"worker": 1})
    assert wandb.run.alerts == [("A round failed", "round 3: no majority", "WARN", 3600)]
    assert wandb.run.rows[-1]["outer/wait_s"] == 9.0


def test_an_unknown_mode_is_refused():
    with pytest.raises(UserError, match=r"log\.wandb\.mode=on is not one of online, offline, disabled"):
        Wandb(mode="on")


WRITE = """\
import json, sys
from pathlib import Path
from outerloop.sinks.wandb import Wandb
from tests.support.sink_rows import play, run_info
play(Wandb(project="p"), run_info(Path(sys.argv[1])), *json.loads(sys.argv[2]))
"""


def records(data):
    """The records of an offline run: a LevelDB log, in blocks of 32 KiB, after a header of 7 bytes."""
    at, record = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last of several pieces
            yield record
            record = b""


@pytest.mark.long
def test_an_offline_run_holds_every_row(tmp_path):
    """Written by a process of its own, since wandb's file is whole when that has ended; read back from the file."""
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    env = os.environ | {"WANDB_MODE": "offline", "PYTHONPATH": os.pathsep.join(sys.path)}
    rows = json.dumps([*ROWS, SUMMARY])
    subprocess.run([sys.executable, "-c", WRITE, tmp_path, rows], check=True, env=env, timeout=200)
    [file] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    told = [Record.FromString(data) for data in records(file.read_bytes())]
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in told
        if record.WhichOneof("record_type") == "history"
    ]
    assert [{key: x for key, x in row.items() if not key.startswith("_")} for row in rows] == CHARTS
    [run] = [record.run for record in told if record.WhichOneof("record_type") == "run"]
    assert (run.display_name, run.run_group, run.job_type) == ("sparseloco-seed0", "sweep", "sparseloco")
