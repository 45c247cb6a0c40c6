"""A run as sinks see it: facts about it, and its rows in the order in which they come."""

from pathlib import Path
from typing import Any

from rich.console import Console

from outerloop.sinks.sink import RunInfo

EVENTS: list[dict[str, Any]] = [
    {"event": "eval", "worker": 0, "step": 0, "round": 0, "tokens": 0},
    {"event": "validation", "step": 0, "round": 0, "tokens": 0, "val_loss": 5.0},
    {"event": "step", "worker": 0, "step": 5, "tokens": 50, "loss": 3.0},
    {"event": "round", "worker": 0, "step": 10, "round": 1, "failed": "", "bytes_sent": 7, "wait_s": 0.5},
    {"event": "step", "worker": 0, "step": 19, "tokens": 190, "loss": 2.0},
    {"event": "step", "worker": 1, "step": 19, "tokens": 190, "loss": 9.0},
    {"event": "round", "worker": 0, "step": 20, "round": 2, "failed": "", "bytes_sent": 14, "wait_s": 0.25},
    {"event": "validation", "step": 10, "round": 1, "tokens": 200, "val_loss": 4.0},
    {"event": "saved", "worker": 0, "step": 20},
    {"event": "validation", "step": 20, "round": 2, "tokens": 400, "val_loss": 3.5},
]
ROWS = [event | {"wall_s": float(seconds)} for seconds, event in enumerate(EVENTS)]
"""Of two workers. An evaluation is complete when the slower one has told its share: that of step 10 after step 20."""
CHARTS: list[dict[str, float]] = [
    {"val/loss": 5.0, "inner_step": 0, "tokens": 0, "bytes_sent": 0},
    {"train/loss": 3.0, "inner_step": 5, "tokens": 100, "bytes_sent": 0},
    {"outer/wait_s": 0.5, "outer/bytes_sent": 7, "inner_step": 10, "tokens": 100, "bytes_sent": 7},
    {"train/loss": 2.0, "inner_step": 19, "tokens": 380, "bytes_sent": 7},
    {"outer/wait_s": 0.25, "outer/bytes_sent": 14, "inner_step": 20, "tokens": 380, "bytes_sent": 14},
    {"val/loss": 4.0, "inner_step": 10, "tokens": 200, "bytes_sent": 7},
    {"val/loss": 3.5, "inner_step": 20, "tokens": 400, "bytes_sent": 14},
]
SUMMARY = {
    "event": "summary",
    "val_loss": 3.5,
    "bits_per_param_per_round": 0.25,
    "utilization": 0.9,
    "slow_hash": ["x"],
}


def run_info(path: Path, **facts: Any) -> RunInfo:
    settings = {"recipe": "sparseloco", "workers": 2, "rounds": 2}
    defaults: dict[str, Any] = {
        "settings": settings, "resume_step": None, "name": "sparseloco-seed0", "group": "sweep", "tags": ("a", "b"),
        "console": Console(),
    }  # fmt: skip
    return RunInfo(path, **(defaults | facts))


def play(sink: Any, run: RunInfo, *rows: dict[str, Any]) -> None:
    """Give a sink a whole run."""
    sink.start(run)
    for row in rows:
        sink.write(row)
    sink.close()
