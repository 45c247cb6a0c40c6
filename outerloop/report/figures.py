"""Every figure of a report, as PNG files with what each shows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outerloop.report import curves, pareto
from outerloop.report.groups import Comparison

HOW_TO_READ = (
    "Line: mean over seeds; band: lowest to highest seed; dashed to a cross: a run that did not finish. Curves begin at"
    " the first validation after training began."
)
PARETO = "Mean over seeds, bar: standard deviation. Ringed: on the Pareto front of final loss and bytes."


@dataclass(frozen=True)
class Picture:
    """One PNG, its heading and what it shows."""

    path: Path
    title: str
    caption: str


def draw_all(comparison: Comparison, folder: Path, *, bits_per_s: float) -> list[Picture]:
    """Draw what there is something to draw for, into a folder that exists; an earlier report's pictures go."""
    pictures = []
    for chart in curves.charts(comparison, bits_per_s=bits_per_s):
        path = folder / f"{chart.name}.png"
        path.unlink(missing_ok=True)
        if curves.draw(comparison, chart, path):
            pictures.append(Picture(path, chart.title, chart.caption))
    if pareto.draw(comparison, folder / "pareto.png"):
        pictures.append(Picture(folder / "pareto.png", "Final loss against bytes", PARETO))
    return pictures
