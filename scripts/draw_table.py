"""Draw the picture of show_table.py: the loss of every case against the bits that it sends."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from show_table import Group, Row

COLUMNS = 3
"""Number of panels in a line of the picture."""


def draw(groups: dict[Group, dict[str, list[Row]]], path: Path) -> None:
    """Plot loss against bits per parameter and step, with one panel per group. A case has one color in all panels."""
    lines = -(-len(groups) // COLUMNS)
    figure, panels = plt.subplots(lines, COLUMNS, figsize=(5 * COLUMNS, 4 * lines + 0.5), squeeze=False)
    names = sorted({rows[0]["case"] for cases in groups.values() for rows in cases.values()})
    colors = {name: plt.get_cmap("tab20")(index) for index, name in enumerate(names)}
    for panel in panels.flat[len(groups) :]:
        panel.set_axis_off()
    for panel, (group, cases) in zip(panels.flat, groups.items(), strict=False):
        draw_group(panel, group, cases, colors)
    for panel in panels[:, 0]:
        panel.set_ylabel("validation loss, nats per byte")
    found = {name: line for panel in panels.flat for line, name in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend([found[name] for name in names], names, loc="lower center", ncols=-(-len(names) // 2), fontsize=9)
    figure.tight_layout(rect=(0, 0.7 / (4 * lines + 0.5), 1, 1))
    figure.savefig(path, dpi=120)


def draw_group(panel: Axes, group: Group, cases: dict[str, list[Row]], colors: dict[str, Any]) -> None:
    """Plot the cases of one group: mean, minimum and maximum of the seeds, connected in the order of their bits."""
    params, steps, sequences, workers, h = group
    for case in sorted({rows[0]["case"] for rows in cases.values()}):
        of_case = [rows for rows in cases.values() if rows[0]["case"] == case]
        of_case.sort(key=lambda rows: rows[0]["bits_per_param_per_step"])
        losses = [[row["nats"] for row in rows] for rows in of_case]
        bits = [max(rows[0]["bits_per_param_per_step"], 1e-4) for rows in of_case]
        below, above = [mean(x) - min(x) for x in losses], [max(x) - mean(x) for x in losses]
        means = [mean(x) for x in losses]
        panel.errorbar(bits, means, yerr=[below, above], marker="o", label=case, color=colors[case])
    panel.set(
        xscale="log",
        xlabel="bits per parameter and step (0.0001: none)",
    )
    title = f"{params / 1e6:.2g}M parameters, {steps:,} steps of {sequences} sequences, {workers} workers, H {h}"
    panel.set_title(title, fontsize=9)
