"""Draw every figure of a report as a PNG file, with a title and a caption."""

from __future__ import annotations

from dataclasses import dataclass
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

    Charts left by an earlier report are deleted.
    """
    pictures = []
    for chart in curves.charts(comparison, bits_per_s=bits_per_s):
        path = folder / f"{chart.name}.png"
        path.unlink(missing_ok=True)
        if curves.draw(comparison, chart, path):
            pictures.append(Picture(path, chart.title, chart.caption))
    if pareto.draw(comparison, folder / "pareto.png"):
        pictures.append(Picture(folder / "pareto.png", "Final loss against bytes", PARETO))
    return pictures
