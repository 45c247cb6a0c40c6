"""Draw the figure of `outerloop plan`: seconds per round against the number of peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.ticker import NullFormatter

from outerloop.report import style
from outerloop.types import UserError


@dataclass(frozen=True)
class Curve:
    """One line of the figure. `points`: (peers, seconds per round)."""

    label: str
    points: Sequence[tuple[int, float]]
    dotted: bool = False


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Draw the curves as a PNG. Raises UserError if the file cannot be written."""
    figure, axes = style.canvas([curve.label for curve in curves])
    for index, curve in enumerate(curves):
        line, mark = (":", None) if curve.dotted else ("-", style.marker(index))
        xs, ys = zip(*curve.points, strict=True)
        axes.plot(xs, ys, line, color=style.colour(index), marker=mark, ms=3.5, lw=1.5, label=curve.label)
    axes.set(xscale="log", yscale="log", xlabel="peers", ylabel="seconds per round")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    try:
        style.save(figure, path)
    except OSError as error:
        raise UserError(
            f"cannot write --picture {path}: {error.strerror}; choose another path, for example --picture plan.png"
        ) from error
