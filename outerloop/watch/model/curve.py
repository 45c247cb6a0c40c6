"""Keep a curve in bounded memory, however long the run: a curve with too many points loses every second one."""

from __future__ import annotations

from dataclasses import dataclass, field

from outerloop.watch.model.page import CurveTable
from outerloop.watch.model.values import shown

MAX_POINTS = 400
"""Maximum number of points of a curve; about one per two pixels of a wide figure."""


@dataclass(frozen=True)
class Place:
    """The position of a point on each horizontal axis. None: not known."""

    round: int | None = None
    step: int | None = None
    tokens: int | None = None
    bytes: int | None = None
    time_s: float | None = None


@dataclass
class Curve:
    """One curve of a figure.

    Args:
        chart: figure that shows the curve.
        name: name of the curve in its legend.
    """

    chart: str
    name: str
    points: list[tuple[Place, float]] = field(default_factory=list)
    newest: tuple[Place, float] | None = None
    stride: int = 1
    added: int = 0

    def add(self, place: Place, y: float) -> None:
        """Add a point. The curve keeps the newest point, and every `stride`-th of all points that have been added."""
        self.newest = place, y
        if self.added % self.stride == 0:
            self.points.append(self.newest)
        self.added += 1
        if len(self.points) > MAX_POINTS:
            self.points = self.points[::2]
            self.stride *= 2

    def page(self) -> CurveTable:
        """Return the curve as the page shows it: one list of values per axis."""
        points = list(self.points)
        if self.newest is not None and self.newest is not points[-1]:
            points.append(self.newest)
        return {
            "chart": self.chart,
            "name": self.name,
            "round": [place.round for place, _ in points],
            "step": [place.step for place, _ in points],
            "tokens": [place.tokens for place, _ in points],
            "bytes": [place.bytes for place, _ in points],
            "time_s": [place.time_s for place, _ in points],
            "y": [shown(y) for _, y in points],
        }
