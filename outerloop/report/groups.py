"""Runs -> groups that differ in more than the seed, their statistics, and how they stand to each other."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from outerloop.report import setting_diff
from outerloop.report.runs import Run
from outerloop.report.units import Stat
from outerloop.types import UserError

DEFAULT_BASELINE = "ddp"
YARDSTICK = ("model.", "data.", "eval.sequences", "inner.seq_len")
"""Losses are compared only between groups that are equal in these settings."""
SAME_TOKENS = 0.01
"""Relative difference in tokens from which on a gap deserves a word."""


@dataclass(frozen=True)
class Group:
    """Runs with the same settings but the seed. `settings` as `setting_diff.trained` returns them."""

    label: str
    settings: dict[str, Any]
    runs: list[Run]

    @property
    def recipe(self) -> str:
        """Name of the recipe."""
        return self.runs[0].recipe

    @property
    def finished(self) -> list[Run]:
        """The runs that count."""
        return [run for run in self.runs if run.results is not None]

    @property
    def unfinished(self) -> list[Run]:
        """The runs that are only listed."""
        return [run for run in self.runs if run.results is None]

    def stat(self, name: str) -> Stat:
        """One number of summary.json over the finished runs."""
        values = [float(run.results[name]) for run in self.runs if run.results is not None]
        return Stat(fmean(values), stdev(values) if len(values) > 1 else None, len(values))

    @property
    def loss(self) -> float:
        """Mean final validation loss, nats a token."""
        return self.stat("val_loss").mean

    @property
    def yardstick(self) -> str:
        """What must be equal for losses to be compared."""
        return setting_diff.identity({key: x for key, x in self.settings.items() if key.startswith(YARDSTICK)})


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Groups with finished runs by final loss, the best first, then the others by label."""
    families: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.settings:
            families[setting_diff.identity(setting_diff.trained(run.settings))].append(run)
    settings = [setting_diff.trained(members[0].settings) for members in families.values()]
    labels = setting_diff.labels(settings)
    groups = [Group(*parts) for parts in zip(labels, settings, families.values(), strict=True)]
    return sorted(groups, key=order)


def order(group: Group) -> tuple[bool, float, str]:
    """Finished before unfinished, finite before diverged, low loss before high."""
    loss = group.loss if group.finished else math.inf
    return (not group.finished, loss if math.isfinite(loss) else math.inf, group.label)


class Comparison:
    """All groups, side by side.

    Args:
        runs: every run that was found.
        baseline: recipe that gaps are measured against; None: ddp, if it is there.

    Raises:
        UserError: if a baseline was asked for and no run of it has finished.
    """

    def __init__(self, runs: Sequence[Run], *, baseline: str | None) -> None:
        self.runs, self.groups = list(runs), grouped(runs)
        self.finished = [group for group in self.groups if group.finished]
        self.baseline = baseline or DEFAULT_BASELINE
        recipes = sorted({group.recipe for group in self.finished})
        if baseline and baseline not in recipes:
            there = f"pass --baseline {recipes[0]}" if recipes else "omit --baseline"
            raise UserError(f"--baseline {baseline}: finished are {', '.join(recipes) or 'no runs'}: {there}")

    @property
    def unfinished(self) -> list[tuple[str, Run]]:
        """Every run that did not finish, with the label of its group."""
        placed = [(group.label, run) for group in self.groups for run in group.unfinished]
        return placed + [(run.recipe, run) for run in self.runs if not run.settings]

    def baseline_of(self, group: Group) -> Group | None:
        """The best group of the baseline recipe whose losses are comparable to this group's."""
        equals = [g for g in self.finished if g.recipe == self.baseline and g.yardstick == group.yardstick]
        return min(equals, key=order, default=None)

    def gap_percent(self, group: Group) -> float | None:
        """How much higher this group's mean final loss is than its baseline's; None: it is one, or has none."""
        base = self.baseline_of(group)
        return None if base is None or base is group else 100 * (group.loss / base.loss - 1)

    @property
    def front(self) -> list[Group]:
        """The Pareto front of final loss and bytes: groups that no other group beats in one and matches in both."""
        places = [(group, group.loss, group.stat("bytes_sent_per_worker").mean) for group in self.finished]
        finite = [place for place in places if math.isfinite(place[1])]
        best = [p for p in finite if not any(dominates(q[1:], p[1:]) for q in finite)]
        return [group for group, _, _ in sorted(best, key=lambda place: place[2])]

    def notes(self) -> list[str]:
        """What a reader must know beside the numbers."""
        return [*self.damage(), *self.twins(), *self.about_baseline()]

    def damage(self) -> list[str]:
        """Lines that could not be read."""
        return [
            f"{r.path}/metrics.jsonl: {r.damaged_lines} damaged line(s) skipped" for r in self.runs if r.damaged_lines
        ]

    def twins(self) -> list[str]:
        """Seeds that were run more than once: their runs are no independent samples."""
        notes = []
        for group in self.finished:
            seeds = [run.settings.get("seed") for run in group.finished]
            again = sorted({str(seed) for seed in seeds if seeds.count(seed) > 1})
            if again:
                notes.append(f"{group.label}: seed {', '.join(again)} was run more than once and counts each time")
        return notes

    def about_baseline(self) -> list[str]:
        """Where gaps compare what is not quite comparable."""
        bases = {group.label: base for group in self.finished if (base := self.baseline_of(group))}
        if not bases:
            return [f"no finished run of the baseline {self.baseline}, so there are no gaps"]
        uneven = [g for g in self.finished if g.label in bases and differs(tokens(g), tokens(bases[g.label]))]
        incomparable = [g.label for g in self.finished if g.label not in bases]
        candidates = sum(group.recipe == self.baseline for group in self.finished)
        return [
            *([f"gaps are to the best of {candidates} {self.baseline} groups"] if candidates > 1 else []),
            *(["a gap compares runs of different length here: look at the tokens beside it"] if uneven else []),
            *(
                [
                    f"no gap, for want of a {self.baseline} run with the same model, data and evaluation: "
                    + "; ".join(incomparable)
                ]
                if incomparable
                else []
            ),
        ]


def dominates(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    """Whether a is nowhere higher than b and somewhere lower."""
    return all(x <= y for x, y in zip(a, b, strict=True)) and a != b


def differs(a: float, b: float) -> bool:
    """Whether two counts of tokens are more than SAME_TOKENS apart."""
    return abs(a - b) > SAME_TOKENS * max(a, b)


def tokens(group: Group) -> float:
    """Mean tokens of a group."""
    return group.stat("tokens").mean
