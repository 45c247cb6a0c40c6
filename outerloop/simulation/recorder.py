"""Record a simulation: its settings, its rows and its summary."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from torch.nn import Module
from torch.optim import Optimizer

from outerloop.inner.events import Event
from outerloop.launcher.validation_merge import ValidationMerge
from outerloop.report.summary import summarize
from outerloop.simulation.arguments import REPLACED, UNUSED
from outerloop.simulation.results import Results, Row
from outerloop.simulation.task import Task, dotted_path
from outerloop.sinks.console import format_bytes
from outerloop.sinks.jsonl import Jsonl
from outerloop.state.checkpoint import write_atomically
from outerloop.types import UserError


def describe_task(settings: DictConfig, task: Task) -> DictConfig:
    """Return the settings for config.yaml: as settings of model and data, they have the names of the task's functions.

    No setting refers to another one, so each can be replaced or removed.
    """
    described, names = settings.copy(), task.names()
    OmegaConf.resolve(described)
    with open_dict(described):
        described.model = {"_target_": names["model"]}
        described.data = {"_target_": names["batches"], "loss": names["loss"]}
        for name in UNUSED:
            described.inner.pop(name, None)
    return described


def describe_optimizer(optimizer: Optimizer) -> Row:
    """Return the class of an optimizer with the settings of its parameter group, or of each group if it has several."""
    groups = [
        {key: value for key, value in group.items() if key not in ("params", "param_names")}
        for group in optimizer.param_groups
    ]
    values = json.dumps(groups[0] if len(groups) == 1 else {"groups": groups}, default=plain)
    return {"_target_": dotted_path(type(optimizer)), **json.loads(values)}


def plain(value: Any) -> Any:
    """Return the numbers of a tensor or array, or the dotted path of any other object's class."""
    return value.tolist() if hasattr(value, "tolist") else dotted_path(value)


class Recorder:
    """Collects the rows of a simulation, writes them to its run directory, and prints notes and each evaluation.

    Files are written from the first round on, so that a simulation that fails earlier can be repeated.

    Args:
        settings: settings of the run, as returned by `describe_task`.
        run_dir: folder to create and write to; None: write no files.
        progress: whether to print notes, such as warnings about settings, and each evaluation.

    Raises:
        UserError: if `run_dir` exists and is not empty.
    """

    def __init__(self, settings: DictConfig, run_dir: Path | None, *, progress: bool) -> None:
        self.settings, self.run_dir, self.progress = settings, run_dir, progress
        self.rows: list[Row] = []
        self.merge, self.start_s = ValidationMerge(range(settings.workers)), time.monotonic()
        self.file: Jsonl | None = None
        if run_dir is not None:
            if run_dir.exists() and not (run_dir.is_dir() and not any(run_dir.iterdir())):
                raise UserError(f"run_dir={run_dir} exists and is not empty: set run_dir= to a new folder")
            run_dir.mkdir(parents=True, exist_ok=True)

    def record_optimizer(self, optimizer: Optimizer) -> None:
        """Replace the settings of the inner optimizer with those of the user's optimizer, for config.yaml."""
        description, method = describe_optimizer(optimizer), self.settings.method
        with open_dict(self.settings):
            self.settings.inner = {"device": self.settings.inner.device, "optimizer": description}
            if method.get("reads") == "gradients":
                method.update(dict.fromkeys(REPLACED) | {"optimizer": description})

    def record(self, event: Event) -> None:
        """Add the row of an event and, if it completes an evaluation, a "validation" row.

        Workers take turns, so calls never overlap.
        """
        for row in (event, *self.merge.add(event)):
            row["wall_s"] = round(time.monotonic() - self.start_s, 3)
            self.rows.append(row)
            self.store(row)
            if self.progress and row["event"] == "validation":
                self.print_validation(row)
            if self.progress and row["event"] == "status":
                print(f"{self.settings.recipe}  {row['text']}", flush=True)

    def store(self, row: Row) -> None:
        """Write a row to the run directory, if any. The first round creates the files, with all rows so far."""
        if self.file:
            self.file.write(row)
        elif self.run_dir is not None and row["event"] == "round":
            write_atomically(self.run_dir / "config.yaml", OmegaConf.to_yaml(self.settings, resolve=True).encode())
            self.file = Jsonl(self.run_dir / "metrics.jsonl", earlier=self.rows)

    def print_validation(self, row: Row) -> None:
        """Print one line for an evaluation."""
        sent = max((other["bytes_sent"] for other in self.rows if other["event"] == "round"), default=0)
        place = f"{self.settings.recipe}  round {row['round']}/{self.settings.rounds}  step {row['step']}"
        print(f"{place}  validation loss {row['val_loss']:.4f}  sent {format_bytes(sent)} per worker", flush=True)

    def results(self, model: Module) -> Results:
        """Return the results of a finished run, after writing summary.json."""
        ready = next(row for row in self.rows if row["event"] == "ready")
        summary = summarize(
            self.rows,
            recipe=self.settings.recipe,
            workers=self.settings.workers,
            rounds=self.settings.rounds,
            params=ready["params"],
        )
        if self.file:
            self.file.sync()
        if self.run_dir is not None:
            write_atomically(self.run_dir / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
        delay = int(self.settings.schedule.get("delay") or 0)
        return Results(summary, self.rows, model, self.run_dir, delay)

    def close(self) -> None:
        """Close metrics.jsonl, if it is being written."""
        if self.file:
            self.file.close()
