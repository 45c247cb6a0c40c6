"""Draw line charts of training progress. Each group of runs is one line, the mean over its seeds.

Each unfinished run is a separate dashed line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes

from outerloop.report import simulated_clock, style
from outerloop.report.groups import Comparison, Group
from outerloop.report.runs import Run
from outerloop.report.units import format_bandwidth

TIMES = [(86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")]
"""(seconds per unit, name of the unit). The largest unit that fits at least twice into the longest time is used."""

LOSS = "validation loss [nats per token]"
SENT = "payload sent per worker, counting every copy"

Values = Callable[[Run], Sequence[float]]


@dataclass(frozen=True)
class Chart:
    """Definition of one figure. `xs`, `ys`: functions that return one number per validation of a run (NaN: missing)."""

    name: str
    title: str
    caption: str
    xlabel: str
    ylabel: str
    xs: Values
    ys: Values
    unit: str | None


def charts(comparison: Comparison, *, bits_per_s: float) -> list[Chart]:
    """Return the definitions of all charts. `bits_per_s`: bandwidth of the simulated clock."""
    return [by_tokens(), by_bytes(), by_clock(comparison, bits_per_s), by_spread()]


def by_tokens() -> Chart:
    """Return the chart of validation loss against training tokens."""
    caption = "Validation loss of the global model against the tokens of the workers on the machine of the run folder."
    return Chart(
        "loss_tokens", "Loss against tokens", caption, "tokens, workers of one machine", LOSS, tokens, losses, unit=""
    )


def by_bytes() -> Chart:
    """Return the chart of validation loss against bytes sent."""
    caption = "Validation loss against the payload bytes that one worker sent, counting every copy."
    return Chart("loss_bytes", "Loss against bytes", caption, SENT, LOSS, Run.sent_bytes, losses, unit="B")


def by_clock(comparison: Comparison, bits_per_s: float) -> Chart:
    """Return the chart of validation loss against simulated time at this bandwidth."""
    bandwidth = format_bandwidth(bits_per_s)
    title, clock_at = f"Loss against simulated time at {bandwidth}", f"simulated wall clock at {bandwidth}"
    unit_s, unit = time_unit(max((s for run in comparison.runs for s in run.seconds(bits_per_s)), default=0.0))

    def times(run: Run) -> list[float]:
        return [s / unit_s for s in run.seconds(bits_per_s)]

    return Chart("loss_clock", title, simulated_clock.MODEL, f"{clock_at} [{unit}]", LOSS, times, losses, unit=None)


def by_spread() -> Chart:
    """Return the chart of the replica spread, a measure of how far apart the workers' slow weights are."""
    title, ylabel = "Replica spread against rounds", "replica spread (rms)"
    caption = "Root mean square, over all weights, of the standard deviation between the workers' slow weights."
    return Chart("spread", title, caption, "outer rounds", ylabel, rounds, spreads, unit=None)


def draw(comparison: Comparison, chart: Chart, path: Path) -> bool:
    """Draw one chart as a PNG and return True. If no run has a point, write nothing and return False."""
    lines = [line for i, group in enumerate(comparison.groups) for line in group_lines(group, chart, i)]
    log = style.needs_log_scale([line.end for line in lines])
    drawn = [seen for line in lines if (seen := line.without_zero() if log else line).points]
    if not drawn:
        return False
    figure, axes = style.canvas([line.label for line in drawn])
    for line in drawn:
        line.draw(axes)
    style.scale_x(axes, log=log, unit=chart.unit)
    axes.set(xlabel=chart.xlabel, ylabel=chart.ylabel)
    style.save(figure, path)
    return True


@dataclass(frozen=True)
class Point:
    """One validation: x, y, and the lowest and highest y over the seeds."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Line:
    """One line of a chart."""

    label: str
    index: int
    points: list[Point]
    finished: bool

    @property
    def end(self) -> float:
        """Return the largest x of the line, or 0 if the line is empty."""
        return max((point.x for point in self.points), default=0.0)

    def without_zero(self) -> Line:
        """Return the line without the points at x = 0, which a logarithmic x axis cannot show."""
        return replace(self, points=[point for point in self.points if point.x > 0])

    def draw(self, axes: Axes) -> None:
        """Draw the line with markers and a band for the range over seeds.

        If it is unfinished, draw it dashed, with a cross at its last point.
        """
        xs, ys = [p.x for p in self.points], [p.y for p in self.points]
        colour, label = style.colour(self.index), self.label
        if not self.finished:
            axes.plot(xs, ys, "--x", color=colour, lw=1, ms=7, mew=2, markevery=[len(xs) - 1], label=label)
            return
        lows, highs = [p.low for p in self.points], [p.high for p in self.points]
        axes.fill_between(xs, lows, highs, color=colour, alpha=0.18, lw=0)
        axes.plot(xs, ys, color=colour, marker=style.marker(self.index), ms=3.5, lw=1.5, label=label)


def group_lines(group: Group, chart: Chart, index: int) -> Iterator[Line]:
    """Yield the mean of the finished runs as one line, then each unfinished run as its own line."""
    seeds = [run_points(run, chart) for run in group.finished]
    if seeds:
        yield Line(f"{group.label} (n={len(seeds)})", index, mean_points(seeds), finished=True)
    for run in group.unfinished:
        yield Line(f"{group.label} (unfinished)", index, mean_points([run_points(run, chart)]), finished=False)


def mean_points(seeds: list[dict[int, tuple[float, float]]]) -> list[Point]:
    """Average x and y over the seeds, for each round in which all seeds have a point.

    `seeds`: one map per seed, from round to (x, y).
    """
    points = []
    for number in (n for n in seeds[0] if all(n in points for points in seeds)):
        xs, ys = zip(*(points[number] for points in seeds), strict=True)
        points.append(Point(fmean(xs), fmean(ys), min(ys), max(ys)))
    return points


def run_points(run: Run, chart: Chart) -> dict[int, tuple[float, float]]:
    """Return a mapping from round to (x, y) for the validations of one run whose x and y are both finite."""
    values = zip(rounds(run), chart.xs(run), chart.ys(run), strict=True)
    return {n: (x, y) for n, x, y in values if math.isfinite(x) and math.isfinite(y)}


def time_unit(longest_s: float) -> tuple[float, str]:
    """Return the length in seconds and the name of the unit that suits this time (see TIMES)."""
    return next(((unit_s, name) for unit_s, name in TIMES if longest_s >= 2 * unit_s), (1.0, "seconds"))


def rounds(run: Run) -> list[int]:
    """Return the outer round of each validation."""
    return [row["round"] for row in run.validations]


def tokens(run: Run) -> list[float]:
    """Return the tokens that the workers on the machine of the run folder had processed at each validation."""
    return [row["tokens"] for row in run.validations]


def losses(run: Run) -> list[float]:
    """Return the validation losses in nats per token.

    The loss of the untrained model is far above the others, so it is replaced by NaN and not drawn, unless the run has
    at most two validations.
    """
    trained = [row["round"] > 0 or len(run.validations) <= 2 for row in run.validations]
    return [row["val_loss"] if seen else math.nan for row, seen in zip(run.validations, trained, strict=True)]


def spreads(run: Run) -> list[float]:
    """Return the replica spread at each validation, or NaN where all workers share one replica."""
    return [math.nan if row.get("spread") is None else row["spread"] for row in run.validations]
