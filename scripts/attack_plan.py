"""Choose the runs of a benchmark of attacks (scripts/bench_attacks.py), in the order in which they are made.

The full plan has every combination. The reduced plan answers one question: how much higher is the loss with the
settings that open runs had when the benchmark was made, and with those that could replace them, without liars and under
each attack?

    step 1    all pairs of SETTINGS (recipe, rule) and all attacks, with seed 0 and f = 0 and 2; the most informative
              runs come first
    step 2    for each pair, the four attacks with the highest loss in step 1, with seeds 0, 1, 2 and f = 0, 1, 2

f is the number of liars. Runs of step 2 that were already made in step 1 are not repeated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from attacked_run import GOSSIP, SCORED, SCREENED, Case

OPEN = ("sparseloco", "plain" + SCREENED)
"""The recipe and the rule of open runs before `outerloop host` got aggregate=median_cosine as its default."""
SETTINGS = (
    OPEN,
    ("sparseloco", "median_cosine" + SCREENED),
    ("sparseloco", "median_cosine" + SCREENED + SCORED),
    ("outerloop", "median_cosine" + SCREENED + SCORED),
    ("outerloop", "plain" + SCREENED),
    ("outerloop", "trust" + SCREENED),
    ("outerloop", "median_cosine" + SCREENED),
    ("sparseloco", "plain"),
    ("outerloop", "plain"),
    ("outerloop", "centered_clip" + SCREENED),
    ("outerloop", "trimmed_mean" + SCREENED),
    ("outerloop", "median" + SCREENED),
    ("noloco", "plain" + SCREENED),
)
ACCEPTED = [
    "flip1",
    "disguised",
    "evasive",
    "constant",
    "support",
    "backdoor",
    "ipm",
    "copycat",
    "labels",
    "noise",
    "minmax",
    "free_rider",
    "absent",
    "alie",
    "delayed",
]
"""Attacks whose payloads the norm screen accepts."""
REFUSED = ["flip10", "times10", "flip1000", "largest", "samples"]
"""Attacks whose payloads the norm screen refuses."""
SEEDS, WORST = (0, 1, 2), 4
DENSE = ("diloco", *GOSSIP)
"""Recipes in which every peer sends a value for every position, so that the attack `support` is impossible."""


@dataclass(frozen=True)
class Size:
    """The number of workers and of rounds of all runs."""

    workers: int
    rounds: int

    def case(self, recipe: str, rule: str, attack: str, liars: int, seed: int) -> Case:
        """Return the run with these properties and this number of workers and rounds."""
        return Case(recipe, rule, attack, liars, self.workers, self.rounds, seed)


def applies(recipe: str, attack: str) -> bool:
    """Return whether an attack can be used against a recipe."""
    return attack != "support" or recipe not in DENSE


def first_step(size: Size) -> list[Case]:
    """Return the runs of step 1, sorted by the place of the attack + 2 · the place of the pair in SETTINGS."""
    attacks = ("calm", *ACCEPTED, *REFUSED)
    ranked = sorted(product(range(len(attacks)), range(len(SETTINGS))), key=lambda place: place[0] + 2 * place[1])
    chosen = ((attacks[attack], *SETTINGS[pair]) for attack, pair in ranked)
    return [
        size.case(recipe, rule, attack, 0 if attack == "calm" else 2, seed=0)
        for attack, recipe, rule in chosen
        if applies(recipe, attack)
    ]


def second_step(size: Size, folder: Path) -> Iterator[Case]:
    """Yield the runs of step 2. The records of step 1 in `folder` determine their attacks."""
    worst = {pair: worst_attacks(pair, size, folder) for pair in SETTINGS}
    for seed, (recipe, rule) in product(SEEDS, SETTINGS):
        yield size.case(recipe, rule, "calm", 0, seed)
        for place, liars in product(range(WORST), (2, 1)):
            yield size.case(recipe, rule, worst[recipe, rule][place], liars, seed)


def worst_attacks(pair: tuple[str, str], size: Size, folder: Path) -> list[str]:
    """Return the WORST attacks with which two liars caused the highest loss. The loss of a failed run is infinite."""
    found = {}
    for case in first_step(size):
        if (case.recipe, case.rule) == pair and case.liars:
            nats = json.loads((folder / case.file).read_text())["val_nats"]
            found[case.attack] = float("inf") if nats is None else nats
    return sorted(found, key=lambda attack: -found[attack])[:WORST]
