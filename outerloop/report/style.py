"""Define the style that all figures share: sizes, colours, axes and legend."""

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

from outerloop.types import printable

matplotlib.rcParams["text.parse_math"] = False  # labels contain settings, and these may contain $
MARKERS = "osD^vPX"
WIDTH, HEIGHT, LINE = 7.2, 4.2, 0.2
"""Width and height of a figure without its legend, and height of one line of the legend, in inches."""
LABEL_WIDTH = 84
"""Maximum number of characters in one line of a legend."""
LOG_FROM = 10
"""The x axis is logarithmic if the largest final x of all curves is at least this many times the smallest final x."""


def colour(index: int) -> str:
    """Return the colour of a group as #rrggbb. After ten groups, colours repeat, with different markers."""
    return to_hex(plt.get_cmap("tab10")(index % 10))


def marker(index: int) -> str:
    """Return the matplotlib marker of a group."""
    return MARKERS[index // 10 % len(MARKERS)]


def canvas(legend: Sequence[str]) -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes, and space below them for a legend with these labels."""
    lines = sum(wrapped(label).count("\n") + 1 for label in set(legend))
    figure, axes = plt.subplots(figsize=(WIDTH, HEIGHT + LINE * lines), constrained_layout=True)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def wrapped(label: str) -> str:
    """Return a label wrapped into lines that fit the figure. It is sanitized, because it may contain any settings."""
    return "\n".join(textwrap.wrap(printable(label), LABEL_WIDTH))


def needs_log_scale(ends: Sequence[float]) -> bool:
    """Return whether curves whose final x values are `ends` need a logarithmic x axis. Zeros are ignored."""
    positive = [x for x in ends if x > 0]
    return bool(positive) and max(positive) >= LOG_FROM * min(positive)


def scale_x(axes: Axes, *, log: bool, unit: str | None) -> None:
    """Set the scale and ticks of the x axis. Call this after all curves are drawn.

    Ticks read "10 MB" with the unit "B", "10 M" with "", and plain numbers with None. A logarithmic axis with curves
    that begin at 0 is linear from 0 to the smallest positive x.
    """
    if log and axes.dataLim.x0 <= 0:
        axes.set_xscale("symlog", linthresh=axes.dataLim.minposx)
    elif log:
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    if log or unit is not None:
        axes.xaxis.set_major_formatter("{x:g}" if unit is None else EngFormatter(unit=unit))


def save(figure: Figure, path: Path) -> None:
    """Add a legend below the axes that shows each label once, write the PNG, and close the figure."""
    handles, names = figure.axes[0].get_legend_handles_labels()
    once = {wrapped(name): handle for handle, name in zip(handles, names, strict=True)}
    figure.legend(list(once.values()), list(once), loc="outside lower left", frameon=False, fontsize=9)
    figure.savefig(path, dpi=130)
    plt.close(figure)
