"""Collect the curves of a run from its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from outerloop.core.utilization import SPENT, utilization
from outerloop.watch.model.curve import Curve, Place
from outerloop.watch.model.notes import changed_values
from outerloop.watch.model.page import CurveTable
from outerloop.watch.model.values import count, finite

Row = Mapping[str, Any]
KEPT_ROUNDS = 100
"""Number of last rounds whose byte counts are kept. A validation needs them, and may be complete some rounds later."""


class Charts:
    """The curves of a run.

    They are the losses, the utilization, the number of peers, the spread of replicas, and the values that adapt during
    the run: H (inner steps per round), k (values per chunk) and the agreement of the payloads.

    Args:
        workers: number of workers on this machine. Token counts are those of all of them together.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.curves: dict[tuple[str, str], Curve] = {}
        self.tokens = self.bytes_sent = self.round = 0
        self.bytes_after_round: dict[int, int] = {0: 0}
        self.losses: list[float] = []
        self.loss_place = Place(step=-1)

    def add(self, row: Row) -> None:
        """Add the points of one row."""
        handler = getattr(self, f"on_{row['event']}", None)
        if handler is not None:
            handler(row)

    def point(self, chart: str, name: str, place: Place, y: float | None) -> None:
        """Add a point to a curve, unless its value is not a finite number."""
        if y is not None:
            self.curves.setdefault((chart, name), Curve(chart, name)).add(place, y)

    def place(self, row: Row) -> Place:
        """Return the position on each axis of a row that one worker wrote."""
        time_s = finite(row.get("wall_s"))
        return Place(self.round, count(row.get("step")), self.tokens, self.bytes_sent, time_s)

    def on_step(self, row: Row) -> None:
        """Collect the training losses of the newest step. If a newer step begins, add their mean as one point."""
        self.tokens = max(self.tokens, self.workers * count(row.get("tokens")))
        loss, place = finite(row.get("loss")), self.place(row)
        if loss is None or (place.step or 0) < (self.loss_place.step or 0):
            return
        if place.step != self.loss_place.step:
            self.flush()
            self.loss_place = place
        self.losses.append(loss)

    def flush(self) -> None:
        """Add the mean of the collected training losses as one point."""
        if self.losses:
            self.point("loss", "training loss", self.loss_place, sum(self.losses) / len(self.losses))
            self.losses = []

    def on_round(self, row: Row) -> None:
        """Add the utilization and the number of peers, as stated by the first worker that reports the round."""
        self.bytes_sent = max(self.bytes_sent, count(row.get("bytes_sent")))
        number = count(row.get("round"))
        if number <= self.round:
            return
        self.round = number
        self.bytes_after_round[number] = self.bytes_sent
        if len(self.bytes_after_round) > KEPT_ROUNDS:
            del self.bytes_after_round[min(self.bytes_after_round)]
        spent = {name: finite(row.get(name)) or 0.0 for name in SPENT}
        self.point("utilization", "utilization", self.place(row), utilization(**spent))
        self.point("peers", "peers that took part", self.place(row), finite(row.get("peers")))

    def on_done(self, row: Row) -> None:
        """Add the last training loss."""
        self.flush()

    def on_validation(self, row: Row) -> None:
        """Add the validation loss and the spread of replicas, at the step after which they were measured."""
        number = count(row.get("round"))
        sent = self.bytes_after_round.get(number, self.bytes_sent)
        place = Place(number, count(row.get("step")), count(row.get("tokens")), sent, finite(row.get("wall_s")))
        self.point("loss", "validation loss", place, finite(row.get("val_loss")))
        self.point("spread", "spread of replicas", place, finite(row.get("spread")))

    def on_status(self, row: Row) -> None:
        """Add the values of H or k before and after a change, and the agreement that caused a change of H."""
        for name, values in changed_values(str(row.get("text", ""))).items():
            for value in values:
                self.point(name, name, self.place(row), value)

    def page(self) -> list[CurveTable]:
        """Return all curves. The mean training loss of the newest step is shown once the next step begins."""
        return [curve.page() for curve in self.curves.values()]
