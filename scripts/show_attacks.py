"""Print tables of bench_attacks.py's records: how much each rule increases the loss, and each attack under each rule.

    .venv/bin/python scripts/show_attacks.py FOLDER

f is the number of liars. Losses are those of worker 0 in nats per byte. All relative figures compare runs of the same
seed, and are means over the seeds of both runs:

    tax     nats(rule, f = 0) / nats(plain, f = 0) − 1      plain: the recipe's own aggregate, without screening
    loss    nats(rule, attack, f) / nats(rule, f = 0) − 1

The first table has the tax and the worst attack of each rule, and the number of attacks that were run. Then, for f = 2
and f = 1, one table has the loss of every attack, with the number of seeds in parentheses if it is not 1. The last
table has the success rate of the back door: the fraction of validation windows in which the model continues the trigger
with the bytes of the liar. A run fails if it ends with an error or with a loss that is not finite. "failed": one of the
runs failed, or all runs with which they are compared. "–": not run.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from seed_statistics import loss_or_inf

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

    def losses(self, pair: Pair, attack: str, liars: int) -> list[float]:
        """Return the relative increases of the loss under an attack."""
        return increases(self.cell(pair, attack, liars), self.cell(pair, CALM, 0))

    def tax(self, pair: Pair) -> list[float]:
        """Return the relative increases of the loss, without liars, over that of the recipe's plain rule."""
        return increases(self.cell(pair, CALM, 0), self.cell((pair[0], "plain"), CALM, 0))

    def worst(self, pair: Pair, liars: int) -> str:
        """Format the attack that increases the loss most, this relative increase, and the number of attacks run."""
        found = {attack: losses for attack in self.attacks if (losses := self.losses(pair, attack, liars))}
        if not found:
            return "–"
        attack = max(found, key=lambda attack: fmean(found[attack]))
        return f"{attack} {percent(found[attack])}, of {len(found)}"

    def shown(self, pair: Pair, attack: str, liars: int) -> str:
        """Format one cell of the tables of losses."""
        losses = self.losses(pair, attack, liars)
        return percent(losses) + (f" ({len(losses)})" if len(losses) > 1 else "")


def increases(rows: dict[int, Row], reference: dict[int, Row]) -> list[float]:
    """Return loss / reference − 1 for each common seed, infinity for a run that failed.

    Seeds whose reference failed are left out. If all of them did, the only increase is infinity.
    """
    pairs = [(loss_of(rows[seed]), loss_of(reference[seed])) for seed in sorted(rows.keys() & reference.keys())]
    found = [loss / base - 1 for loss, base in pairs if base < math.inf]
    return found if found or not pairs else [math.inf]


def loss_of(row: Row) -> float:
    """Return the loss of a run, or infinity if it failed."""
    return loss_or_inf(row["val_nats"])


def order(pair: Pair) -> tuple[str, bool, str]:
    """Return a sort key for pairs of recipe and rule: by recipe, plain rules first."""
    return pair[0], not pair[1].startswith("plain"), pair[1]


def percent(increases: Sequence[float]) -> str:
    """Format the mean of relative increases of the loss."""
    if not increases:
        return "–"
    return "failed" if math.inf in increases else f"{fmean(increases):+.1%}".replace("%", " %")


def print_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print a table in Markdown, and an empty line."""
    print("|", " | ".join(head), "|")
    print("|", " | ".join(["---"] * len(head)), "|")
    for line in lines:
        print("|", " | ".join(line), "|")
    print()


def nats_of(rows: dict[int, Row]) -> str:
    """Format the mean loss of the runs that did not fail."""
    found = [loss for row in rows.values() if (loss := loss_of(row)) < math.inf]
    return f"{fmean(found):.3f}" if found else "failed" if rows else "–"


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
    return f"{fmean(found):.0%}".replace("%", " %") if found else "–"


def main() -> None:
    """Print the tables of the records in a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the records: --out of bench_attacks.py")
    print_all(Records([json.loads(file.read_text()) for file in sorted(parser.parse_args().folder.glob("*.json"))]))


if __name__ == "__main__":
    main()
