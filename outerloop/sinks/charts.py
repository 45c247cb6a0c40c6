"""Define the charts that every logger draws: their names, values and x-axes.

    train/*  the first worker's inner steps        outer/*  its rounds        val/*  evaluations of the global model

A value can be plotted against inner steps, the tokens of all workers on this machine, or the payload bytes sent by the
first worker: every copy, without the state that newcomers download. An evaluation is complete only when the slowest
worker has reported its share, and the first worker may have logged later steps before that. On each axis, the
evaluation is nevertheless placed at the step after which it was made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from outerloop.core.round import CHARTS
from outerloop.core.utilization import SPENT

OWN = (*SPENT, "utilization", "credited_rounds", "credited_samples", "state_bytes_sent")
"""Fields of a "round" row, in addition to those in core/round.py, that have a chart."""
NAMES = {
    "step": {"loss": "train/loss", "lr": "train/lr", "tokens_per_s": "train/tokens_per_s"},
    "round": CHARTS | {name: f"outer/{name}" for name in OWN},
    "validation": {"val_loss": "val/loss"},
}
"""Event -> field name -> chart name."""
FOLDERS = sorted({chart.partition("/")[0] for charts in NAMES.values() for chart in charts.values()})
STEP, TOKENS, BYTES = "inner_step", "tokens", "bytes_sent"
"""Names of the x-axes."""


class Charts:
    """The charts of one run, computed from its rows.

    Args:
        workers: number of workers on this machine.
        earlier: rows from before the run was resumed, from which the axes continue.
    """

    def __init__(self, workers: int, earlier: Iterable[dict[str, Any]] = ()) -> None:
        self.workers = workers
        self.tokens = self.bytes_sent = 0
        self.bytes_after_round: dict[int, int] = {}
        for row in earlier:
            self.update_axes(row)

    def values(self, row: dict[str, Any]) -> dict[str, float]:
        """Return the values of a row by chart name and its position by axis name; {} if no chart shows the row."""
        self.update_axes(row)
        if row.get("worker", 0):
            return {}
        names = NAMES.get(row["event"], {})
        values = {names[key]: value for key, value in row.items() if key in names and value is not None}
        return values | self.axes(row) if values else {}

    def update_axes(self, row: dict[str, Any]) -> None:
        """Store the token and byte counts in a row of the first worker. Rows of other workers are ignored."""
        if row.get("worker", 0):
            return
        if row["event"] in ("step", "eval"):
            self.tokens = self.workers * row.get("tokens", 0)
        if row["event"] == "round":
            sent = row.get("bytes_sent", 0) - row.get("state_bytes_sent", 0)
            self.bytes_sent = self.bytes_after_round[row["round"]] = sent

    def axes(self, row: dict[str, Any]) -> dict[str, float]:
        """Return the position of a row on each axis. For a round, the token count is that of the last logged step."""
        if row["event"] != "validation":
            return {STEP: row["step"], TOKENS: self.tokens, BYTES: self.bytes_sent}
        sent = self.bytes_after_round.get(row["round"], self.bytes_sent)
        return {STEP: row["step"], TOKENS: row["tokens"], BYTES: sent if row["round"] else 0}
