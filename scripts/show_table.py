"""Print the table of bench_table.py's records: how far every case is behind data-parallel training.

    .venv/bin/python scripts/show_table.py --json FILE [--page FILE.md] [--picture FILE.png]

    gap = mean over seeds s of  nats(case, s) / nats(reference, s) − 1       with a 90 % interval (Student's t)

The first gap is relative to data-parallel training, the second to the dense recipe; both references have the same inner
optimizer, number of workers and seed as the case. "equal" marks a gap whose interval is within ±0.5 % (two one-sided
tests at 5 %). The learning rates and momentum of a case are those with the lowest loss at the seed, H (inner steps per
round) and number of workers at which the case was tuned. "bytes a token": payload bytes that all workers send per token
that they train on.

A case that was also run with other options, such as schedule.delay=2, has one row for each set of options. The column
"against the plain case" then shows the gap to the same case without them; "against v1", the gap to the first version of
the recipe. The picture connects such rows, in order of the bits that they send.

--page writes the tables into a Markdown page, between the lines in MARKS, instead of printing them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from statistics import mean
from typing import Any

from seed_statistics import half_width, loss_or_inf

Row = dict[str, Any]
Group = tuple[int, int, int, int, int]
"""The common values of comparable runs: params, steps, sequences, workers, sync_every."""
EQUAL = 0.005
EVERY_STEP = ("ddp_adamw", "ddp_muon")
"""Cases that exchange gradients in every step. They are listed for every H."""
ALONE = (*EVERY_STEP, "ddp_adamw_nesterov", "ddp_muon_nesterov")
"""Cases that are trained by one worker. They are listed for every number of workers."""
MARKS = "<!-- tables of show_table.py -->\n", "<!-- end of the tables -->\n"
"""The lines between which --page writes."""
FAST_MEAN = "nats_of_fast_mean"
"""Field of a record: loss of the mean of the workers' fast weights before the last landing. Early records lack it."""
TUNED = ("lr", "inner_momentum", "weight_decay", "outer_lr", "momentum")
"""Fields of a record that are tuned for each case."""


def paired_gaps(rows: Sequence[Row], reference: Sequence[Row]) -> list[float]:
    """Return loss / reference loss − 1 for each seed for which both exist."""
    theirs = by_seed(reference)
    return [loss / theirs[seed] - 1 for seed, loss in by_seed(rows).items() if seed in theirs]


def by_seed(rows: Sequence[Row]) -> dict[int, float]:
    """Return the losses of a cell by seed. Raises ValueError if it has two runs of a seed, which would count twice."""
    losses = {row["seed"]: row["nats"] for row in rows}
    if len(losses) < len(rows):
        raise ValueError(f"{rows[0]['case']} has two records with the same seed, size and options: remove one of them")
    return losses


def gap_text(rows: Sequence[Row], reference: Sequence[Row]) -> str:
    """Format the gap to the reference as "+4.2 ± 0.3 %", as "+4.2 % (1)" if there is one seed, or as "diverged"."""
    gaps = paired_gaps(rows, reference)
    if not gaps or rows is reference:
        return "–"
    if not all(map(isfinite, gaps)):
        return "diverged"
    middle, half = mean(gaps), half_width(gaps)
    if half == float("inf"):
        return f"{100 * middle:+.1f} % (1)"
    return f"{100 * middle:+.1f} ± {100 * half:.1f} %" + (" equal" if abs(middle) + half <= EQUAL else "")


def tuned(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the best values of the tuned settings. `rows`: all of one case and size.

    The best values are those with the lowest loss at the seed, H and number of workers for which the most values were
    tried.
    """

    def place(row: Row) -> tuple[int, int, int]:
        return row["sync_every"], row["workers"], row["seed"]

    def values(row: Row) -> list[float | None]:
        return [row[key] for key in TUNED]

    tried: dict[tuple[int, int, int], list[Row]] = {}
    for row in rows:
        tried.setdefault(place(row), []).append(row)
    most_tried = max(tried.values(), key=lambda same_place: len(same_place))
    best = min(most_tried, key=lambda row: loss_or_inf(row["nats"]))
    return [row for row in rows if values(row) == values(best)]


def labelled(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with a "label": the case, followed by the options that not all rows have."""
    common = set.intersection(*(set(row["options"]) for row in rows))
    return [row | {"label": " ".join([row["case"], *sorted({*row["options"]} - common)])} for row in rows]


def table(rows: Sequence[Row]) -> dict[Group, dict[str, list[Row]]]:
    """Return the runs in the table as a map from group to label to runs.

    Data-parallel training is listed for every H, and a case with one worker for every number of workers.
    """
    sizes = sorted({size_of(row) for row in rows})
    groups: dict[Group, dict[str, list[Row]]] = {}
    for size in sizes:
        of_size = labelled([row for row in rows if size_of(row) == size])
        labels = {row["label"] for row in of_size}
        kept = [row for label in labels for row in tuned([r for r in of_size if r["label"] == label])]
        every = sorted({row["sync_every"] for row in kept if row["case"] not in EVERY_STEP}) or [1]
        for workers in sorted({row["workers"] for row in kept if row["case"] not in ALONE}) or [1]:
            for h in every:
                cases: dict[str, list[Row]] = {}
                for row in kept:
                    if row["workers"] == workers_of(row, workers) and row["sync_every"] == h_of(row, h):
                        cases.setdefault(row["label"], []).append(row)
                groups[*size, workers, h] = cases
    return groups


def size_of(row: Row) -> tuple[int, int, int]:
    """Return the values that all runs of a size have in common: params, steps, sequences per step of all workers."""
    return row["params"], row["steps"], row["sequences"]


def workers_of(row: Row, workers: int) -> int:
    """Return the number of workers that a row must have to be in the group of `workers` workers."""
    return 1 if row["case"] in ALONE else workers


def h_of(row: Row, h: int) -> int:
    """Return the H (inner steps per round) that a row must have to be in the group of H = `h`."""
    return 1 if row["case"] in EVERY_STEP else h


def markdown(groups: dict[Group, dict[str, list[Row]]]) -> str:
    """Return the tables of all groups."""
    return "\n".join(group_table(group, cases) for group, cases in groups.items())


def group_table(group: Group, cases: dict[str, list[Row]]) -> str:
    """Return one group as a Markdown table with a heading, best case first."""
    params, steps, sequences, workers, h = group
    columns = [
        "case",
        "lr",
        "momentum",
        "weight decay",
        "outer lr, momentum",
        "nats",
        "nats of the mean of fast weights",
        "behind DDP, same inner",
        "behind dense, same inner",
        "against v1",
        "against the plain case",
        "bits a round",
        "bits a step",
        "bytes a token",
        "seeds",
    ]
    best_first = sorted(cases.items(), key=lambda item: loss_or_inf(mean_loss(item[1])))
    lines = [[label, *cells(rows, cases, workers=workers)] for label, rows in best_first]
    lines = [columns, ["---"] * len(columns), *lines]
    heading = f"### {params / 1e6:.2f}M parameters, {steps:,} steps of {sequences} sequences, {workers} workers, H {h}"
    return "\n".join([heading, "", *(f"| {' | '.join(line)} |" for line in lines), ""])


def cells(rows: Sequence[Row], cases: dict[str, list[Row]], *, workers: int) -> list[str]:
    """Return the cells of one line of the table, after the label.

    cases: all rows of the group, by label.
    workers: number of workers of the group.
    """
    first = rows[0]
    adamw = first["inner_momentum"] is None
    case = first["case"]
    version_1 = f"{case.partition('_v')[0]}_v1"
    references = "ddp_adamw" if adamw else "ddp_muon", "diloco" if adamw else "muloco", version_1, case
    return [
        f"{first['lr']:g}",
        f"{first['inner_momentum'] or ''}",
        f"{first['weight_decay']:g}",
        "" if first["outer_lr"] is None else f"{first['outer_lr']:g}, {first['momentum']:g}",
        f"{mean_loss(rows):.4f}",
        fast_mean_text(rows),
        *(gap_text(rows, cases.get(reference, [])) for reference in references),
        f"{first['bits_per_param_per_round']:.3f}",
        f"{first['bits_per_param_per_step']:.4f}",
        f"{bytes_per_token(first, workers):,.2f}",
        f"{len(rows)}",
    ]


def bytes_per_token(row: Row, workers: int) -> float:
    """Return the payload bytes that all workers send per token that they train on. A payload counts once.

    workers: number of workers that send. The record of data-parallel training does not have it, because all of its
    groups have the same records.
    """
    return workers * row["bits_per_param_per_step"] / 8 * row["params"] * row["steps"] / row["tokens"]


def mean_loss(rows: Sequence[Row]) -> float:
    """Return the mean loss of some rows, in nats."""
    return mean(row["nats"] for row in rows)


def fast_mean_text(rows: Sequence[Row]) -> str:
    """Format the mean loss of the mean of the fast weights, or return "" unless all records have it.

    Data-parallel training has no second set of weights.
    """
    losses = [loss for row in rows if (loss := row.get(FAST_MEAN)) is not None]
    if rows[0]["case"] in EVERY_STEP or len(losses) < len(rows):
        return ""
    return f"{mean(losses):.4f}"


def write_into(page: Path, text: str) -> None:
    """Replace the text between the lines in MARKS of a Markdown page. Raises ValueError if a line is missing."""
    before, rest = page.read_text().split(MARKS[0])
    _, after = rest.split(MARKS[1])
    page.write_text("".join([before, MARKS[0], "\n", text, "\n", MARKS[1], after]))


def main() -> None:
    """Print the tables or write them into a page and, with --picture, draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="page to write the tables into")
    parser.add_argument("--picture", type=Path, metavar="FILE")
    args = parser.parse_args()
    groups = table(json.loads(args.json.read_text()))
    if args.page:
        write_into(args.page, markdown(groups))
    else:
        print(markdown(groups))
    if args.picture:
        from draw_table import draw  # only here: bench_table imports this module into every process that trains

        draw(groups, args.picture)


if __name__ == "__main__":
    main()
