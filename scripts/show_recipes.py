"""Print and plot bench_recipes.py's records: the loss of every case at every H and number of workers.

    .venv/bin/python scripts/show_recipes.py --json FILE --inner-steps 600 --picture FILE.png

H is the number of inner steps per round. A case's learning rate is the one with the lowest loss among its runs with the
smallest H, the fewest workers and the lowest seed. A cell holds the mean over seeds, and half the difference between
the maximum and the minimum. Cases that exchange in every step show the same runs at every H.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib.pyplot as plt
from seed_statistics import loss_or_inf

Row = dict[str, Any]
Cell = tuple[str, int, int]


def tuned(rows: list[Row]) -> list[Row]:
    """Return the runs that have their case's best learning rate."""
    best: dict[str, Row] = {}
    for row in sorted(rows, key=place):
        best.setdefault(row["case"], row)
    return [row for row in rows if row["lr"] == best[row["case"]]["lr"]]


def place(row: Row) -> tuple[int, int, int, float]:
    """Return a sort key for runs: H, number of workers, seed, loss. The loss of a run that diverged is infinity."""
    return row["sync_every"], row["workers"], row["seed"], loss_or_inf(row["val_loss"])


def cells(rows: list[Row]) -> dict[Cell, list[Row]]:
    """Return the runs by (case, H, workers)."""
    found: dict[Cell, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["case"], row["sync_every"], row["workers"]].append(row)
    return found


def text(runs: list[Row]) -> str:
    """Format losses as "1.621 ± 0.010" (mean, half the range), or as "1.621 (1)" if there is only one seed."""
    losses = [run["val_loss"] for run in runs]
    if not losses:
        return "–"
    return f"{mean(losses):.3f} ± {(max(losses) - min(losses)) / 2:.3f}" if len(losses) > 1 else f"{losses[0]:.3f} (1)"


def draw(found: dict[Cell, list[Row]], hs: list[int], workers: list[int], path: Path) -> None:
    """Plot the loss against H, one panel per number of workers."""
    figure, panels = plt.subplots(1, len(workers), figsize=(5.5 * len(workers), 4.5), sharey=True, squeeze=False)
    for panel, count in zip(panels[0], workers, strict=True):
        for number, case in enumerate(sorted({case for case, _, _ in found})):
            points = {h: runs for h in hs if (runs := found.get((case, h, count)) or found.get((case, 1, count)))}
            losses = [mean(run["val_loss"] for run in runs) for runs in points.values()]
            panel.plot(list(points), losses, marker="osv^Dx*"[number % 7], color=plt.cm.tab20(number % 20), label=case)
        panel.set(title=f"{count} workers", xlabel="H, inner steps per round", xscale="log", xticks=hs, xticklabels=hs)
        panel.minorticks_off()
    panels[0][0].set_ylabel("validation loss, nats per byte")
    panels[0][-1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def print_table(rows: list[Row], found: dict[Cell, list[Row]], hs: list[int], workers: list[int]) -> None:
    """Print the table in Markdown, best case first."""
    print("| case | lr | bits |", *(f"H {h}, {count} workers |" for count in workers for h in hs))
    print("|", *["--- |"] * (3 + len(hs) * len(workers)))
    for case in sorted({row["case"] for row in rows}, key=lambda case: (loss_of(found, case, hs[0], workers[0]), case)):
        last = [row for row in rows if row["case"] == case][-1]
        losses = [text(found.get((case, h, n)) or found.get((case, 1, n)) or []) for n in workers for h in hs]
        print(f"| {case} | {last['lr']:.0e} | {last['bits_per_param_per_round']:.3f} |", " | ".join(losses), "|")


def loss_of(found: dict[Cell, list[Row]], case: str, h: int, workers: int) -> float:
    """Return a case's mean loss at `h`, or at H = 1 if it has no runs at `h`, or infinity if it has neither."""
    runs = found.get((case, h, workers)) or found.get((case, 1, workers))
    return mean(run["val_loss"] for run in runs) if runs else float("inf")


def main() -> None:
    """Print the table in Markdown and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--inner-steps", type=int, required=True)
    parser.add_argument("--picture", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()
    records = json.loads(args.json.read_text())
    rows = tuned([row for row in records if row["inner_steps"] == args.inner_steps])
    if not rows:
        known = ", ".join(map(str, sorted({row["inner_steps"] for row in records})))
        parser.error(f"{args.json} has no run of --inner-steps {args.inner_steps}: choose one of {known}")
    found = cells(rows)
    hs = sorted({h for _, h, _ in found} - {1}) or [1]
    workers = sorted({count for _, _, count in found})
    print_table(rows, found, hs, workers)
    draw(found, hs, workers, args.picture)


if __name__ == "__main__":
    main()
