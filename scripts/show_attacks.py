"""Print tables of bench_attacks.py's records: how much each rule increases the loss, and each attack under each rule.

    .venv/bin/python scripts/show_attacks.py FOLDER

f is the number of liars. Losses are those of worker 0 in nats per byte. All relative figures compare runs of the same
seed, and are means over the seeds of a cell:

    tax     nats(rule, f = 0) / nats(plain, f = 0) − 1      plain: the recipe's own aggregate, without screening
    loss    nats(rule, attack, f) / nats(rule, f = 0) − 1

The first table has the tax and the worst attack of each rule, and the number of attacks that were run. Then, for f = 2
and f = 1, one table has the loss of every attack, with the number of seeds in parentheses if it is not 1. The last
table has the success rate of the back door: the fraction of validation windows in which the model continues the trigger
with the bytes of the liar. "failed": the run ended with an error. "–": not run.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

Row = dict[str, Any]
Pair = tuple[str, str]
CALM = "calm"


class Records:
    """The records of a folder, by recipe, rule, attack and number of liars."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.cells: dict[tuple[str, str, str, int], dict[int, Row]] = defaultdict(dict)
        for row in rows:
            self.cells[row["recipe"], row["rule"], row["attack"], row["liars"]][row["seed"]] = row
        self.pairs: list[Pair] = sorted({(row["recipe"], row["rule"]) for row in rows}, key=order)
        self.attacks = sorted({row["attack"] for row in rows} - {CALM})
        self.liars = sorted({row["liars"] for row in rows} - {0}, reverse=True)

    def cell(self, pair: Pair, attack: str, liars: int) -> dict[int, Row]:
        """Return the records of one cell by seed."""
        return self.cells.get((*pair, attack, liars), {})

    def relative(self, rows: dict[int, Row], reference: dict[int, Row]) -> float | None:
        """Return the mean of nats / reference − 1 over common seeds; None if there are none, inf if a run failed."""
        seeds = rows.keys() & {seed for seed, row in reference.items() if row["val_nats"]}
        if any(rows[seed]["val_nats"] is None for seed in seeds):
            return float("inf")
        return mean(rows[seed]["val_nats"] / reference[seed]["val_nats"] - 1 for seed in seeds) if seeds else None

    def loss(self, pair: Pair, attack: str, liars: int) -> float | None:
        """Return the relative increase of the loss under an attack."""
        return self.relative(self.cell(pair, attack, liars), self.cell(pair, CALM, 0))

    def tax(self, pair: Pair) -> float | None:
        """Return the relative increase of the loss, without liars, over that of the recipe's plain rule."""
        return self.relative(self.cell(pair, CALM, 0), self.cell((pair[0], "plain"), CALM, 0))

    def worst(self, pair: Pair, liars: int) -> str:
        """Format the attack that increases the loss most, this relative increase, and the number of attacks run."""
        found = {attack: loss for attack in self.attacks if (loss := self.loss(pair, attack, liars)) is not None}
        if not found:
            return "–"
        attack = max(found, key=lambda attack: found[attack])
        return f"{attack} {percent(found[attack])}, of {len(found)}"

    def shown(self, pair: Pair, attack: str, liars: int) -> str:
        """Format one cell of the tables of losses."""
        seeds = len(self.cell(pair, attack, liars))
        return percent(self.loss(pair, attack, liars)) + (f" ({seeds})" if seeds > 1 else "")


def order(pair: Pair) -> tuple[str, bool, str]:
    """Return a sort key for pairs of recipe and rule: by recipe, plain rules first."""
    return pair[0], not pair[1].startswith("plain"), pair[1]


def percent(value: float | None) -> str:
    """Format a relative increase of the loss."""
    return "–" if value is None else "failed" if value == float("inf") else f"{value:+.1%}".replace("%", " %")


def print_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print a table in Markdown, and an empty line."""
    print("|", " | ".join(head), "|")
    print("|", " | ".join(["---"] * len(head)), "|")
    for line in lines:
        print("|", " | ".join(line), "|")
    print()


def nats_of(rows: dict[int, Row]) -> str:
    """Format the mean loss of the runs that did not fail."""
    found = [row["val_nats"] for row in rows.values() if row["val_nats"] is not None]
    return f"{mean(found):.3f}" if found else "–"


def print_all(records: Records) -> None:
    """Print all tables."""
    names = [f"{recipe} {rule}" for recipe, rule in records.pairs]
    worst = [f"worst at f = {liars}" for liars in sorted(records.liars)]
    print_table(
        ["recipe and rule", "nats, f = 0", "tax", *worst],
        [
            [
                name,
                nats_of(records.cell(pair, CALM, 0)),
                percent(records.tax(pair)),
                *(records.worst(pair, liars) for liars in sorted(records.liars)),
            ]
            for name, pair in zip(names, records.pairs, strict=True)
        ],
    )
    for liars in records.liars:
        lines = [[attack, *(records.shown(p, attack, liars) for p in records.pairs)] for attack in records.attacks]
        print_table([f"loss, f = {liars}", *names], [line for line in lines if set(line[1:]) != {"–"}])
    rates = [[f"{rate(records.cell(p, 'backdoor', liars))}" for p in records.pairs] for liars in records.liars]
    print_table(
        ["back door taken", *names], [[f"f = {n}", *line] for n, line in zip(records.liars, rates, strict=True)]
    )


def rate(rows: dict[int, Row]) -> str:
    """Format the mean success rate of the back door."""
    found = [row["backdoor"] for row in rows.values() if row["backdoor"] is not None]
    return f"{mean(found):.0%}".replace("%", " %") if found else "–"


def main() -> None:
    """Print the tables of the records in a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the records: --out of bench_attacks.py")
    print_all(Records([json.loads(file.read_text()) for file in sorted(parser.parse_args().folder.glob("*.json"))]))


if __name__ == "__main__":
    main()
