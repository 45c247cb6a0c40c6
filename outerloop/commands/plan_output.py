"""Print the output of `outerloop plan`: the tables and the recommended method, with the reason. Draw the plot."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from outerloop.plan.forecast import DAY_S, Forecast, forecast
from outerloop.plan.links import ring_s, tree_s
from outerloop.plan.recommend import Budget, consumption, recommend
from outerloop.plan.scenario import Fleet, Method
from outerloop.report import terminal
from outerloop.report.table import Table
from outerloop.report.units import Stat, format_count
from outerloop.sinks.sink import print_line
from outerloop.swarm.validation import MAX_PEERS

PIPE_WIDTH = 180
"""Table width in characters when the output is a file or a pipe."""
SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
"""Numbers of peers that the plot shows."""
UNITS = ((DAY_S, "days"), (3600.0, "h"), (60.0, "min"))


def print_plan(
    rows: Sequence[Forecast], *, tokens_per_step: float, tokens: float, budget: Budget, changed: Sequence[str]
) -> None:
    """Print the tables, the recommendation and the notes.

    `tokens_per_step`: tokens in one inner step of one peer. `tokens`: total tokens of all peers in the run. `changed`:
    options that change the recipes in a way for which no losses were measured, such as "--delay 5".
    """
    console = Console() if sys.stdout.isatty() else Console(width=PIPE_WIDTH)
    best, why = recommend(rows, budget, tokens / tokens_per_step)
    hours, sent_bytes = consumption(best, tokens / tokens_per_step)
    used = f"  the run takes {hours:,.1f} hours, and each peer sends {quantity(sent_bytes, 'B')}"
    for table in (times_table(rows, best, tokens_per_step, tokens), memory_table(rows)):
        for part in terminal.fit_to_width(table, console.width):
            console.print(part)
    measured = [f"the losses were measured with each recipe's own density and delay, without {' '.join(changed)}"]
    for line in [f"→ {best.method.label}: {why}", used, *(measured if changed else []), *notes(rows)]:
        print_line(console, line)


def times_table(rows: Sequence[Forecast], best: Forecast, each: float, tokens: float) -> Table:
    """Return the table of times, with the fastest recipe first. `each`: tokens in one inner step of one peer."""
    fleet, params = best.fleet, best.method.params
    sizes, spent = ["H", "delay", "bits/param", "payload"], ["round", "utilization", "exposed", "waiting", "met"]
    return Table(
        f"{fleet.peers} peers, {quantity(params)} parameters",
        ["recipe", "exchange", *sizes, *spent, "sent a day", f"{quantity(tokens)} tokens"],
        [
            [("→ " if row is best else "  ") + row.method.name, *cells(row), duration(tokens / row.tokens_per_s(each))]
            for row in sorted(rows, key=lambda row: -row.tokens_per_s(each))
        ],
    )


def cells(row: Forecast) -> list[str]:
    """Return the cells of one method's row, except for its name and the duration of the run."""
    method = row.method
    return [
        method.exchange,
        str(method.sync_every),
        str(method.delay),
        f"{method.bits_per_param:.3g}",
        quantity(method.payload_bytes, "B"),
        seconds(row.round_s),
        f"{row.utilization:.1%}",
        seconds(row.exposed_s),
        seconds(row.waiting_s),
        f"{row.rate.met:.0%}",
        quantity(row.sent_bytes_per_day, "B"),
    ]


def memory_table(rows: Sequence[Forecast]) -> Table:
    """Return the table of memory use on the training device, with one column per component."""
    methods = {row.method.name: row.method for row in rows}.values()
    return Table(
        "Memory of the training device, without activations",
        ["recipe", *rows[0].method.memory, "total"],
        [[m.name, *(quantity(size, "B") for size in (*m.memory.values(), m.memory_bytes))] for m in methods],
    )


def notes(rows: Sequence[Forecast]) -> Iterator[str]:
    """Yield lines with the limits and conditions of the forecast.

    One line states the maximum number of peers in the gather exchange, if it is exceeded. The others state the settings
    that each recipe needs.
    """
    if rows[0].fleet.peers > MAX_PEERS and any(row.method.exchange == "gather" for row in rows):
        yield f"gather supports up to {MAX_PEERS} peers, so the rows with gather are for comparison only"
    yield from dict.fromkeys(f"{row.method.name} needs {' '.join(row.overrides)}" for row in rows if row.overrides)


def quantity(value: float, unit: str = "") -> str:
    """Format a number with an SI prefix: 1.5e9 -> "1.50 G"."""
    return format_count(Stat(value, None, 1), unit)


def seconds(time_s: float) -> str:
    """Format seconds to one decimal place."""
    return f"{time_s:,.1f} s"


def duration(time_s: float) -> str:
    """Format a duration in the largest unit that fits: days, h, min or s."""
    unit_s, name = next((unit for unit in UNITS if time_s >= unit[0]), (1.0, "s"))
    return f"{time_s / unit_s:,.1f} {name}"


def draw_curves(fleet: Fleet, methods: Sequence[Method], path: Path) -> None:
    """Plot the seconds per round against the number of peers for every method.

    For comparison, also plot a ring all-reduce and a tree all-reduce of the largest payload.
    """
    from outerloop.report.plan_figure import Curve, draw  # imports matplotlib, which the tables do not need

    sizes = sorted({*SIZES, max(2, fleet.peers)})
    fleets = [replace(fleet, peers=n) for n in sizes]
    curves = [
        Curve(
            f"{method.label}, {method.exchange}",
            [(scaled.peers, forecast(scaled, method).round_s) for scaled in fleets],
        )
        for method in methods
    ]
    largest = max(methods, key=lambda method: method.payload_bytes)
    compute_s = largest.sync_every * fleet.step_s
    for name, took in (("ring", ring_s), ("tree", tree_s)):
        points = [(n, compute_s + took(fleet.links, largest.payload_bytes, n)) for n in sizes]
        curves.append(Curve(f"{name} all-reduce of {largest.name}'s payload, for comparison", points, dotted=True))
    draw(curves, path)
    print(f"picture  {path}")
