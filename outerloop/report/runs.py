"""Run folders -> what a report needs of each run, finished, under way or died.

Numbers come from metrics.jsonl, summary.json and config.yaml. A damaged line is skipped and counted.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from outerloop.report.simulated_clock import StepRate, paces
from outerloop.types import UserError

Row = dict[str, Any]

FIELDS = {
    "validation": ("step", "round", "tokens", "val_loss"),
    "round": ("worker", "step", "round", "payload_bytes", "bytes_sent", "wait_s"),
    "step": ("worker", "step", "loss"),
}
"""Event -> the numbers that its row must have."""
RESULTS = ("val_loss", "bits_per_param_per_round", "bytes_sent_per_worker", "tokens", "wait_s", "wall_s")
"""The numbers of summary.json that are averaged over seeds."""
DIED = "died.json"
"""What a job of a sweep leaves when it could not train to its end: {"why": one line, "settings": its configuration}."""
SWEEP = "multirun.yaml"
"""What hydra leaves in the folder of a sweep, beside one numbered folder a run."""
FRESH_S = 120
"""A metrics.jsonl written to this recently may belong to a run under way."""


@dataclass(frozen=True)
class Run:
    """One run.

    `settings`: config.yaml, dotted keys, empty when it cannot be read. `results`: summary.json, None for a run that
    did not finish. `validations`: rows of metrics.jsonl. `why`: why it did not finish, `trace` the whole error text.
    """

    path: Path
    settings: Row
    results: Row | None
    validations: list[Row]
    paces: list[StepRate]
    last_round: int
    last_train_loss: float | None
    damaged_lines: int
    why: str
    trace: str

    @property
    def recipe(self) -> str:
        """Name of the recipe."""
        return str(self.settings.get("recipe", "unknown"))

    @property
    def steps(self) -> list[int]:
        """Inner steps at the validations."""
        return [row["step"] for row in self.validations]

    def sent_bytes(self) -> list[float]:
        """What one worker had sent at each validation, copies counted: the mean over workers."""
        if not self.paces:
            return [0.0] * len(self.steps)
        return [sum(x) / len(x) for x in zip(*(pace.bytes_at(self.steps) for pace in self.paces), strict=True)]

    def seconds(self, bits_per_s: float) -> list[float]:
        """The simulated clock at each validation: the slowest worker's."""
        if not self.paces:
            return [0.0] * len(self.steps)
        clocks = (pace.seconds_at(self.steps, bits_per_s) for pace in self.paces)
        return [max(x) for x in zip(*clocks, strict=True)]


def find(folders: Sequence[Path]) -> list[Path]:
    """Every run in or under these folders, each once, in order. Raises UserError."""
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder: run outerloop report with a run folder, or one that holds runs")
        runs = runs_under(folder)
        if not runs:
            raise UserError(
                f"no run in or under {folder}: a run is a folder with config.yaml and metrics.jsonl, which outerloop"
                " train leaves in its run_dir: run outerloop report runs"
            )
        for path in runs:
            found.setdefault(path.resolve(), path)
    return list(found.values())


def runs_under(folder: Path) -> list[Path]:
    """Run folders at any depth; what lies inside a run or a hidden folder is not looked at."""
    runs = []
    for place, inner, files in os.walk(folder):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        if is_run(Path(place), files):
            runs.append(Path(place))
            inner.clear()
    return runs


def is_run(folder: Path, files: Sequence[str]) -> bool:
    """Whether a run was started here: rows, a config.yaml that names a recipe, or a place in a sweep."""
    if "metrics.jsonl" in files or DIED in files:
        return True
    if "config.yaml" in files:
        return "recipe" in read_settings(folder)
    return folder.name.isdigit() and (folder.parent / SWEEP).exists()


def read(path: Path) -> Run:
    """One run folder."""
    settings, results = read_settings(path), read_results(path)
    rows, damaged_lines = read_rows(path / "metrics.jsonl")
    trace = last_error(rows)
    train_losses = [row["loss"] for row in rows if row["event"] == "step"]
    last_round = max((row["round"] for row in rows if row["event"] in ("round", "validation")), default=0)
    finished = results is not None and bool(settings)
    return Run(
        path=path,
        settings=settings,
        results=results if finished else None,
        validations=[row for row in rows if row["event"] == "validation"],
        paces=paces(rows, delay_steps=int(settings.get("schedule.delay") or 0)),
        last_round=last_round,
        last_train_loss=train_losses[-1] if train_losses else None,
        damaged_lines=damaged_lines,
        why="" if finished else read_died(path).get("why") or why_unfinished(path, settings, trace, last_round),
        trace=trace,
    )


def why_unfinished(path: Path, settings: Row, trace: str, last_round: int) -> str:
    """One line."""
    if not settings:
        begun = (path / "config.yaml").exists() or (path / "metrics.jsonl").exists()
        return "config.yaml is missing or damaged" if begun else "ended without a word before it began to train"
    if trace:
        return trace.strip().splitlines()[-1]
    metrics = path / "metrics.jsonl"
    age_s = time.time() - metrics.stat().st_mtime if metrics.exists() else FRESH_S
    running = f", or still running: last row {max(0.0, age_s):.0f} s ago" if age_s < FRESH_S else ""
    return f"stopped after round {last_round}{running}"


def last_error(rows: list[Row]) -> str:
    """The text of the error that ended the last sitting; nothing when it went on, or left no word."""
    for row in reversed(rows):
        if row["event"] == "error":
            return str(row.get("text") or "an error without a text")
        if row["event"] in ("ready", "step", "round"):
            break
    return ""


def read_settings(path: Path) -> Row:
    """config.yaml with dotted keys, else those of `DIED`; empty when there is none or it is damaged."""
    try:
        settings = yaml.safe_load((path / "config.yaml").read_text())
    except (OSError, ValueError, yaml.YAMLError):
        settings = read_died(path).get("settings")
    return flat(settings) if isinstance(settings, dict) else {}


def read_died(path: Path) -> Row:
    """What a job that died has left; empty when it has left nothing, or the file is damaged."""
    try:
        left = json.loads((path / DIED).read_text())
    except (OSError, ValueError):
        return {}
    return left if isinstance(left, dict) else {}


def flat(node: Any, prefix: str = "") -> Row:
    """Nested dictionaries -> dotted keys."""
    if not isinstance(node, dict) or not node:
        return {prefix.rstrip("."): node}
    return {key: value for name, child in node.items() for key, value in flat(child, f"{prefix}{name}.").items()}


def read_results(path: Path) -> Row | None:
    """summary.json; None when there is none, or not with all that is averaged."""
    try:
        results = json.loads((path / "summary.json").read_text())
    except (OSError, ValueError):
        return None
    return results if has_numbers(results, RESULTS) else None


def read_rows(path: Path) -> tuple[list[Row], int]:
    """The rows of metrics.jsonl, and how many lines could not be read."""
    if not path.exists():
        return [], 0
    rows = [row_of(line) for line in path.read_text(errors="replace").splitlines() if line.strip()]
    good = [row for row in rows if row is not None]
    return good, len(rows) - len(good)


def row_of(line: str) -> Row | None:
    """One line as a row, None when it is damaged."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or "event" not in row:
        return None
    return row if has_numbers(row, ("wall_s", "step", *FIELDS.get(str(row["event"]), ()))) else None


def has_numbers(row: Any, names: Sequence[str]) -> bool:
    """Whether all of these are there as numbers."""
    return isinstance(row, dict) and all(isinstance(row.get(name), int | float) for name in names)
