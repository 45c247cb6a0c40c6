"""How figures look: the one file of a report that sets matplotlib up."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

MARKERS = "osD^vPX"
WIDTH, HEIGHT, LINE = 7.2, 4.2, 0.2
"""Inches: a figure without its legend, and one line of a legend."""
LABEL_WIDTH = 84
"""Characters in one line of a legend."""
LOG_FROM = 10
"""How many times further the longest curve must reach than the shortest for a logarithmic axis."""


def colour(index: int) -> str:
    """The colour of a group, as #rrggbb; ten, then again (the marker tells them apart)."""
    return to_hex(plt.get_cmap("tab10")(index % 10))


def marker(index: int) -> str:
    """The marker of a group."""
    return MARKERS[index // 10 % len(MARKERS)]


def canvas(legend: Sequence[str]) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, and room below for these labels."""
    lines = sum(wrapped(label).count("\n") + 1 for label in set(legend))
    figure, axes = plt.subplots(figsize=(WIDTH, HEIGHT + LINE * lines), constrained_layout=True)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def wrapped(label: str) -> str:
    """A label in lines that fit the figure."""
    return "\n".join(textwrap.wrap(label, LABEL_WIDTH))


def reaches_far(ends: Sequence[float]) -> bool:
    """Whether curves that end at these x want a logarithmic axis, on which 0 has no place."""
    positive = [x for x in ends if x > 0]
    return bool(positive) and max(positive) >= LOG_FROM * min(positive)


def scale_x(axes: Axes, *, log: bool, unit: str | None) -> None:
    """Ticks as 10 MB for the unit B, as 10 M for "", as 10 for None. Call when everything is drawn."""
    if log:
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    if log or unit is not None:
        axes.xaxis.set_major_formatter("{x:g}" if unit is None else EngFormatter(unit=unit))


def save(figure: Figure, path: Path) -> None:
    """The legend below the axes, where it hides nothing, each label once; write the PNG and free the figure."""
    handles, names = figure.axes[0].get_legend_handles_labels()
    once = {wrapped(name): handle for handle, name in zip(handles, names, strict=True)}
    figure.legend(list(once.values()), list(once), loc="outside lower left", frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)
    plt.close(figure)
