"""Read the data of a report from run folders. A run may be finished, still running or dead.

The data comes from metrics.jsonl, summary.json and config.yaml. Damaged lines are skipped and counted.
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

from outerloop.report.metric_rows import has_numbers, is_number, read_rows
from outerloop.report.simulated_clock import WorkerStepRate, worker_step_rates
from outerloop.state.damage import CORRECT, refuse_unreadable
from outerloop.types import UserError

Row = dict[str, Any]

RESULTS = ("val_loss", "bits_per_param_per_round", "bytes_sent_per_worker", "tokens", "wait_s", "wall_s")
"""Fields of summary.json that the report averages over seeds."""
PAYLOADS_SENT = "sent_payload_bytes"
"""Field of `Run.results` that summary.json does not have: payload bytes that one worker sent, counting every copy."""
DELAY = "schedule.delay"
DIED = "died.json"
"""File that a sweep job writes when its training fails: {"why": one line, "settings": its configuration}."""
SWEEP = "multirun.yaml"
"""File that hydra writes into the folder of a sweep, next to one numbered folder per run."""
FRESH_S = 120
"""Age of metrics.jsonl, in seconds, from which an unfinished run is no longer assumed to be running."""


@dataclass(frozen=True)
class Run:
    """One run, as read from its folder.

    settings: config.yaml with dotted keys; empty if it cannot be read.
    results: summary.json, and PAYLOADS_SENT; None if the run did not finish.
    validations: the validation rows of metrics.jsonl.
    why: why the run did not finish, or why a later job in its folder failed; otherwise empty.
    trace: the complete text of the error that ended the run, or "".
    """

    path: Path
    settings: Row
    results: Row | None
    validations: list[Row]
    step_rates: list[WorkerStepRate]
    last_round: int
    last_train_loss: float | None
    damaged_lines: int
    why: str
    trace: str

    @property
    def recipe(self) -> str:
        """Return the name of the recipe."""
        return str(self.settings.get("recipe", "unknown"))

    @property
    def steps(self) -> list[int]:
        """Return the inner step of each validation."""
        return [row["step"] for row in self.validations]

    def sent_bytes(self) -> list[float]:
        """Return the payload bytes, every copy counted, that a worker had sent before each validation (mean)."""
        if not self.step_rates:
            return [0.0] * len(self.steps)
        return [sum(x) / len(x) for x in zip(*(pace.bytes_at(self.steps) for pace in self.step_rates), strict=True)]

    def seconds(self, bits_per_s: float) -> list[float]:
        """Return for each validation the seconds in which the slowest worker reaches it at a simulated bandwidth."""
        if not self.step_rates:
            return [0.0] * len(self.steps)
        clocks = (pace.seconds_at(self.steps, bits_per_s) for pace in self.step_rates)
        return [max(x) for x in zip(*clocks, strict=True)]


def find(folders: Sequence[Path]) -> list[Path]:
    """Return the folders of all runs in or under these folders, in order and without duplicates.

    Raises UserError if a folder does not exist or contains no run.
    """
    found: dict[Path, Path] = {}
    for folder in folders:
        with refuse_unreadable(folder, mend=CORRECT):
            if not folder.is_dir():
                raise UserError(
                    f"{folder} is not a folder: call outerloop report with a run folder or a folder that contains runs"
                )
            next(folder.iterdir(), None)  # os.walk would skip a folder that cannot be read
            runs = runs_under(folder)
        if not runs:
            raise UserError(
                f"no run in or under {folder}: a run folder contains config.yaml and metrics.jsonl, which outerloop"
                " train writes to its run_dir; for example, call outerloop report runs"
            )
        for path in runs:
            found.setdefault(path.resolve(), path)
    return list(found.values())


def runs_under(folder: Path) -> list[Path]:
    """Return all run folders in or under a folder, also those that symbolic links name, each only once.

    Hidden folders, and folders inside a run folder, are skipped. A symbolic link to a folder that contains run folders
    is not followed, because it may lead to a large part of the file system.
    """
    runs: list[Path] = []
    links: list[Path] = []
    for current, subfolders, files in os.walk(folder):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        if is_run(Path(current), files):
            runs.append(Path(current))
            subfolders.clear()
        links += [path for name in subfolders if (path := Path(current) / name).is_symlink()]
    if not links:
        return runs
    found = {path.resolve() for path in runs}
    for link in links:
        if link.resolve() not in found and is_run(link, names_in(link)):
            found.add(link.resolve())
            runs.append(link)
    return runs


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, or an empty list if it cannot be read."""
    try:
        return [path.name for path in folder.iterdir()]
    except OSError:
        return []


def is_run(folder: Path, files: Sequence[str]) -> bool:
    """Return whether a run was started in this folder.

    A run folder contains metrics.jsonl, `DIED` or a config.yaml with a recipe, or is a numbered folder of a sweep.
    """
    if "metrics.jsonl" in files or DIED in files:
        return True
    if "config.yaml" in files:
        return "recipe" in read_settings(folder)
    return folder.name.isdigit() and (folder.parent / SWEEP).exists()


def read(path: Path) -> Run:
    """Read one run folder."""
    settings, results = read_settings(path), read_results(path)
    rows, damaged_lines, unreadable = read_rows(path / "metrics.jsonl")
    trace = last_error(rows)
    train_losses = [row["loss"] for row in rows if row["event"] == "step"]
    last_round = max((row["round"] for row in rows if row["event"] in ("round", "validation")), default=0)
    finished = results is not None and bool(settings) and not unreadable
    why = unreadable or ("" if finished else why_unfinished(path, settings, trace, last_round))
    return Run(
        path=path,
        settings=settings,
        results=with_payloads(results) if finished and results else None,
        validations=[row for row in rows if row["event"] == "validation"],
        step_rates=worker_step_rates(rows, delay_steps=settings[DELAY] if has_numbers(settings, [DELAY]) else 0),
        last_round=last_round,
        last_train_loss=train_losses[-1] if train_losses else None,
        damaged_lines=damaged_lines,
        why=str(read_died(path).get("why") or why),
        trace=trace,
    )


def why_unfinished(path: Path, settings: Row, trace: str, last_round: int) -> str:
    """Return a one-line reason why a run did not finish."""
    if not settings:
        started = (path / "config.yaml").exists() or (path / "metrics.jsonl").exists()
        return (
            "config.yaml is missing or damaged" if started else "ended without an error message before training began"
        )
    if trace:
        return trace.strip().splitlines()[-1]
    metrics = path / "metrics.jsonl"
    age_s = time.time() - metrics.stat().st_mtime if metrics.exists() else FRESH_S
    running = f", or still running: last row {max(0.0, age_s):.0f} s ago" if age_s < FRESH_S else ""
    return f"stopped after round {last_round}{running}"


def last_error(rows: list[Row]) -> str:
    """Return the text of the error that ended the last session.

    Return "" if the run continued after its last error, or logged no error.
    """
    for row in reversed(rows):
        if row["event"] == "error":
            return str(row.get("text") or "error without a message")
        if row["event"] in ("ready", "step", "round"):
            break
    return ""


def read_settings(path: Path) -> Row:
    """Return the settings of config.yaml with dotted keys, or the settings in `DIED` if config.yaml cannot be read.

    Return an empty dictionary if neither file can be read.
    """
    try:
        settings = yaml.safe_load((path / "config.yaml").read_text())
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        settings = read_died(path).get("settings")
    try:
        return flatten(settings) if isinstance(settings, dict) else {}
    except RecursionError:
        return {}


def read_died(path: Path) -> Row:
    """Return the contents of `DIED`, or an empty dictionary if the file is missing or damaged."""
    return read_record(path / DIED)


def read_record(file: Path) -> Row:
    """Return the dictionary in a JSON file, or an empty one if the file is missing or damaged."""
    try:
        record = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def flatten(node: Any, prefix: str = "") -> Row:
    """Flatten nested dictionaries into a single one with dotted keys."""
    if not isinstance(node, dict) or not node:
        return {prefix.rstrip("."): node}
    return {key: value for name, child in node.items() for key, value in flatten(child, f"{prefix}{name}.").items()}


def read_results(path: Path) -> Row | None:
    """Return the contents of summary.json, or None if it cannot be read or lacks a field of `RESULTS`."""
    results = read_record(path / "summary.json")
    return results if has_numbers(results, RESULTS) else None


def with_payloads(results: Row) -> Row:
    """Return results with PAYLOADS_SENT. Summaries of earlier versions do not contain the bytes of the state."""
    state = results.get("state_bytes_sent_per_worker")
    return results | {PAYLOADS_SENT: results["bytes_sent_per_worker"] - (state if is_number(state) else 0)}
