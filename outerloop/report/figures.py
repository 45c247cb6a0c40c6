"""Draw every figure of a report as a PNG file, with a title and a caption."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from outerloop.report import curves, pareto
from outerloop.report.groups import Comparison

HOW_TO_READ = (
    "Line: mean over seeds. Band: range over seeds. Dashed line ending in a cross: a run that did not finish."
    " Curves start at the first validation after the start of training."
)
PARETO = "Marker: mean over seeds. Bar: standard deviation. Ring: on the Pareto front of final loss and bytes."


@dataclass(frozen=True)
class Picture:
    """One PNG file with its title and caption."""

    path: Path
    title: str
    caption: str


def draw_all(comparison: Comparison, folder: Path, *, bits_per_s: float) -> list[Picture]:
    """Draw every figure that has data as a PNG file in an existing folder. Return the figures drawn.

    Figures left by an earlier report are deleted.
    """
    drawings: dict[Picture, Callable[[Path], bool]] = {
        Picture(folder / f"{chart.name}.png", chart.title, chart.caption): partial(curves.draw, comparison, chart)
        for chart in curves.charts(comparison, bits_per_s=bits_per_s)
    }
    drawings[Picture(folder / "pareto.png", "Final loss against bytes", PARETO)] = partial(pareto.draw, comparison)
    for picture in drawings:
        picture.path.unlink(missing_ok=True)
    return [picture for picture, draw in drawings.items() if draw(picture.path)]
