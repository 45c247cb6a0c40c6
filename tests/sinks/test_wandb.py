"""What Weights & Biases is told: every row, in whatever order rows come."""

import json
import os
import struct
import subprocess
import sys
from types import SimpleNamespace

import pytest

from outerloop.sinks.wandb import Wandb

ROWS = [
    {"event": "step", "worker": 0, "step": 5, "loss": 3.0},
    {"event": "step", "worker": 0, "step": 19, "loss": 2.0},
    {"event": "step", "worker": 1, "step": 19, "loss": 9.0},
    {"event": "validation", "step": 10, "val_loss": 4.0},
    {"event": "round", "worker": 0, "step": 10, "wait_s": 0.5},
    {"event": "saved", "worker": 0, "step": 20},
    {"event": "validation", "step": 20, "val_loss": 3.5},
]
"""A validation comes when the slowest worker has told its share: at step 19 of the first one, for step 10."""
CHARTS = [
    {"train/loss": 3.0, "inner_step": 5},
    {"train/loss": 2.0, "inner_step": 19},
    {"val/loss": 4.0, "inner_step": 10},
    {"outer/wait_s": 0.5, "inner_step": 10},
    {"val/loss": 3.5, "inner_step": 20},
]


class MonotoneRun:
    """A run that drops what comes with a lower step than before, as wandb's do; without one, each row gets its own."""

    def __init__(self):
        self.step, self.rows, self.axes = -1, [], {}

    def define_metric(self, name, step_metric=None):
        self.axes[name] = step_metric

    def log(self, values, step=None):
        step = self.step + 1 if step is None else step
        if step >= self.step:
            self.step = step
            self.rows.append(values)

    def finish(self):
        pass


def test_every_row_is_kept_and_drawn_against_inner_steps(tmp_path, monkeypatch):
    run = MonotoneRun()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **settings: run))
    sink = Wandb(project="p", entity=None, name="n", run_dir=tmp_path, settings={})
    for row in ROWS:
        sink.write(row)
    assert run.rows == CHARTS
    assert run.axes == {f"{charts}/*": "inner_step" for charts in ("outer", "train", "val")}


WRITE = """\
import json, sys
from pathlib import Path
from outerloop.sinks.wandb import Wandb
sink = Wandb(project="p", entity=None, name="n", run_dir=Path(sys.argv[1]), settings={})
for row in json.loads(sys.argv[2]):
    sink.write(row)
sink.close()
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

    env = os.environ | {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    subprocess.run([sys.executable, "-c", WRITE, tmp_path, json.dumps(ROWS)], check=True, env=env, timeout=200)
    [file] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    told = [Record.FromString(data) for data in records(file.read_bytes())]
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in told
        if record.WhichOneof("record_type") == "history"
    ]
    assert [{key: x for key, x in row.items() if not key.startswith("_")} for row in rows] == CHARTS
