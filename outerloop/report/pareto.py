"""Draw the final loss of each group against the bytes sent, and mark the Pareto front."""

from __future__ import annotations

import math
from pathlib import Path

from matplotlib.axes import Axes

from outerloop.report import style
from outerloop.report.groups import Comparison, Group
from outerloop.report.runs import PAYLOADS_SENT


def draw(comparison: Comparison, path: Path) -> bool:
    """Draw the figure as a PNG and return True. If no run has a finite final loss, write nothing and return False."""
    front = comparison.front
    if not front:
        return False
    shown = [(i, group) for i, group in enumerate(comparison.groups) if group in comparison.finished]
    figure, axes = style.canvas([group.label for _, group in shown] + ["front"])
    for index, group in shown:
        draw_group(axes, group, index)
    draw_front(axes, front)
    style.scale_x(axes, log=style.needs_log_scale([bytes_sent(group) for _, group in shown]), unit="B")
    axes.set(xlabel="payload sent per worker, counting every copy", ylabel="final validation loss [nats per token]")
    style.save(figure, path)
    return True


def draw_group(axes: Axes, group: Group, index: int) -> None:
    """Draw a marker at the mean final loss, with its standard deviation over seeds as an error bar."""
    loss = group.stat("val_loss")
    label = f"{group.label} (n={loss.n})"
    colour, marker = style.colour(index), style.marker(index)
    if math.isfinite(loss.mean):
        x, y, yerr = [bytes_sent(group)], [loss.mean], [loss.std or 0.0]
        axes.errorbar(x, y, yerr=yerr, label=label, color=colour, fmt=marker, ms=7, capsize=3)


def draw_front(axes: Axes, front: list[Group]) -> None:
    """Draw the Pareto front as a step line, with a ring around each group on it."""
    xs, ys = [bytes_sent(group) for group in front], [group.loss for group in front]
    axes.step(xs, ys, where="post", color="0.5", lw=1, ls=":", zorder=1)
    axes.plot(
        xs,
        ys,
        "o",
        ms=13,
        mfc="none",
        mec="0.2",
        mew=1.2,
        label="Pareto front: no group has both lower loss and fewer bytes",
    )


def bytes_sent(group: Group) -> float:
    """Return the mean number of payload bytes sent per worker, counting every copy."""
    return group.stat(PAYLOADS_SENT).mean
