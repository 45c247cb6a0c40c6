"""The results of a simulation: its rows, its curves and the final model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.nn import Module

from outerloop.report.simulated_clock import worker_step_rates

Row = dict[str, Any]


@dataclass(frozen=True)
class Results:
    """The results of one simulation.

    Curves have one point per evaluation: `steps` (inner steps per worker), `losses` (mean over all validation samples)
    and `bytes_sent` (per worker; a payload counts once per recipient).

    `summary`: the content of summary.json. `rows`: the rows of metrics.jsonl, in which "tokens" counts samples.
    `model`: the model with the final global weights. `run_dir`: the folder that `outerloop report` reads; None if no
    files were written.
    `delay`: inner steps between sending a payload and applying the result (schedule.delay).
    """

    summary: Row
    rows: list[Row] = field(repr=False)
    model: Module = field(repr=False)
    run_dir: Path | None = None
    delay: int = 0

    @property
    def validations(self) -> list[Row]:
        """The rows of all evaluations, in order."""
        return [row for row in self.rows if row["event"] == "validation"]

    @property
    def steps(self) -> list[int]:
        """The inner step of each evaluation."""
        return [row["step"] for row in self.validations]

    @property
    def losses(self) -> list[float]:
        """The validation loss of the global model at each evaluation."""
        return [row["val_loss"] for row in self.validations]

    @property
    def bytes_sent(self) -> list[float]:
        """The bytes sent up to each evaluation (mean over workers); a payload counts once per recipient."""
        rates = worker_step_rates(self.rows, delay_steps=self.delay)
        return [sum(sent) / len(sent) for sent in zip(*(rate.bytes_at(self.steps) for rate in rates), strict=True)]

    @property
    def val_loss(self) -> float:
        """The final validation loss of the global model."""
        return self.losses[-1]

    def __repr__(self) -> str:
        keys = (
            "recipe",
            "workers",
            "rounds",
            "val_loss",
            "bits_per_param_per_round",
            "bytes_sent_per_worker",
            "wall_s",
        )
        return f"Results({', '.join(f'{key}={self.summary[key]!r}' for key in keys)})"
