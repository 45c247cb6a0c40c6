"""Weights & Biases: offline unless a key is set; its failures are told once and never stop training."""

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
"""Event -> name of a field -> name of its chart."""
STEP = "inner_step"
"""Name of the horizontal axis. Wandb's own step only rises, and drops what comes with a lower one."""


class Wandb:
    """The first worker's steps and rounds, and every validation, against inner steps, in whatever order they come.

    A validation comes when the slowest worker has told its share, after later steps of the first worker.

    Args:
        project, entity, name: of the wandb run.
        run_dir: where its files go.
        settings: the configuration to show beside it.
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
                id=id_of(run_dir),
                resume="allow",
            )
            for charts in sorted({chart.partition("/")[0] for names in NAMES.values() for chart in names.values()}):
                self.run.define_metric(f"{charts}/*", step_metric=STEP)
        except Exception as error:
            self.give_up(error)

    def write(self, row: dict[str, Any]) -> None:
        """One row, if it has a chart."""
        names = NAMES.get(row["event"], {})
        values = {names[key]: value for key, value in row.items() if key in names and value is not None}
        if self.run is None or not values or row.get("worker", 0):
            return
        try:
            self.run.log(values | {STEP: row["step"]})
        except Exception as error:
            self.give_up(error)

    def close(self) -> None:
        """Upload or write what is left."""
        try:
            if self.run is not None:
                self.run.finish()
        except Exception as error:
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Say it once; from then on rows go nowhere."""
        self.run = None
        log.warning("wandb failed and is left out from here on: %s", error)


def id_of(run_dir: Path) -> str:
    """The wandb id of a run directory, made once: resuming goes on in the same wandb run."""
    file = run_dir / "wandb-id.txt"
    if not file.exists():
        file.write_text(uuid.uuid4().hex)
    return file.read_text()
