"""Weights & Biases sink: offline unless a key is set. A failure is logged once and never stops training."""

from __future__ import annotations

import logging
import os
import uuid
from pathlib import Path
from typing import Any

from outerloop.core.round import CHARTS, SPENT

log = logging.getLogger(__name__)

NAMES = {
    "step": {"loss": "train/loss", "lr": "train/lr", "tokens_per_s": "train/tokens_per_s"},
    "round": CHARTS | {name: f"outer/{name}" for name in (*SPENT, "utilization")},
    "validation": {"val_loss": "val/loss"},
}
"""Event -> field name -> chart name."""
STEP = "inner_step"
"""Name of the horizontal axis. wandb's own step must not decrease: wandb drops values with a lower step."""


class Wandb:
    """A sink that logs the first worker's steps and rounds, and all validations, against inner steps in any order.

    A validation is complete when the slowest worker has reported its share, so it may follow later steps of the first
    worker.

    Args:
        project, entity, name: of the wandb run.
        run_dir: folder for wandb's files.
        settings: the configuration to show with the run.
    """

    def __init__(self, *, project: str, entity: str | None, name: str, run_dir: Path, settings: dict[str, Any]) -> None:
        self.run = None
        try:
            import wandb

            online = bool(os.environ.get("WANDB_API_KEY") or (Path.home() / ".netrc").exists())
            self.run = wandb.init(
                project=project,
                entity=entity,
                name=name,
                dir=str(run_dir),
                config=settings,
                mode="online" if online else "offline",
                id=wandb_run_id(run_dir),
                resume="allow",
            )
            for charts in sorted({chart.partition("/")[0] for names in NAMES.values() for chart in names.values()}):
                self.run.define_metric(f"{charts}/*", step_metric=STEP)
        except Exception as error:
            self.give_up(error)

    def write(self, row: dict[str, Any]) -> None:
        """Log one row if any of its fields has a chart."""
        names = NAMES.get(row["event"], {})
        values = {names[key]: value for key, value in row.items() if key in names and value is not None}
        if self.run is None or not values or row.get("worker", 0):
            return
        try:
            self.run.log(values | {STEP: row["step"]})
        except Exception as error:
            self.give_up(error)

    def close(self) -> None:
        """Finish the wandb run: upload or write the remaining data."""
        try:
            if self.run is not None:
                self.run.finish()
        except Exception as error:
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Log the failure and drop all later rows."""
        self.run = None
        log.warning("wandb failed and is disabled from now on: %s", error)


def wandb_run_id(run_dir: Path) -> str:
    """Return the wandb id of a run directory, created once so that a resumed run continues the same wandb run."""
    file = run_dir / "wandb-id.txt"
    if not file.exists():
        file.write_text(uuid.uuid4().hex)
    return file.read_text()
