"""Group runs that differ only in the seed, compute statistics per group, and compare the groups."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import stdev
from typing import Any

from outerloop.report import setting_diff
from outerloop.report.baseline import Baseline
from outerloop.report.runs import PAYLOADS_SENT, Run
from outerloop.report.units import Stat
from outerloop.types import UserError

DEFAULT_BASELINE = "ddp"
YARDSTICK = ("model", "data", "eval.sequences", "inner.seq_len")
"""Losses are compared only between groups with equal values for these settings and those nested below them."""
SAME_TOKENS = 0.01
"""Relative difference in token counts above which the report notes that two runs of different length are compared."""


@dataclass(frozen=True)
class Group:
    """Runs whose settings differ only in the seed. `settings`: as returned by `setting_diff.training_settings`."""

    label: str
    settings: dict[str, Any]
    runs: list[Run]

    @property
    def recipe(self) -> str:
        """Return the name of the recipe."""
        return self.runs[0].recipe

    @property
    def finished(self) -> list[Run]:
        """Return the finished runs, the only ones that the statistics include."""
        return [run for run in self.runs if run.results is not None]

    @property
    def unfinished(self) -> list[Run]:
        """Return the unfinished runs, which the report lists but does not average."""
        return [run for run in self.runs if run.results is None]

    def stat(self, name: str) -> Stat:
        """Return the mean and standard deviation of one field of `Run.results` over the finished runs.

        There is no standard deviation if a value is infinite or NaN.
        """
        values = [float(run.results[name]) for run in self.runs if run.results is not None]
        mean = sum(values) / len(values)
        return Stat(mean, stdev(values) if len(values) > 1 and math.isfinite(mean) else None, len(values))

    @property
    def loss(self) -> float:
        """Return the mean final validation loss in nats per token."""
        return self.stat("val_loss").mean

    @cached_property
    def comparison_key(self) -> str:
        """Return a key that is equal for groups whose losses can be compared."""
        below = tuple(f"{name}." for name in YARDSTICK)
        return setting_diff.identity({key: x for key, x in self.settings.items() if f"{key}.".startswith(below)})


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group the runs. Groups with finished runs come first, sorted by loss; then the others, by label."""
    families: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.settings:
            families[setting_diff.identity(setting_diff.training_settings(run.settings))].append(run)
    settings = [setting_diff.training_settings(members[0].settings) for members in families.values()]
    labels = setting_diff.labels(settings)
    groups = [Group(*parts) for parts in zip(labels, settings, families.values(), strict=True)]
    return sorted(groups, key=sort_key)


def sort_key(group: Group) -> tuple[bool, float, str]:
    """Return a sort key: finished groups before unfinished ones, then low losses before high and non-finite ones."""
    loss = group.loss if group.finished else math.inf
    return (not group.finished, loss if math.isfinite(loss) else math.inf, group.label)


class Comparison:
    """The comparison of all groups of runs in a report.

    Args:
        runs: all runs that were found.
        baseline: recipe whose loss serves as the reference for the other losses; None means ddp.

    Raises:
        UserError: if a baseline was given and no run of this recipe has finished.
    """

    def __init__(self, runs: Sequence[Run], *, baseline: str | None) -> None:
        self.runs, self.groups = list(runs), group_runs(runs)
        self.finished = [group for group in self.groups if group.finished]
        self.baseline = Baseline(baseline or DEFAULT_BASELINE, self.finished)
        recipes = sorted({group.recipe for group in self.finished})
        if baseline and baseline not in recipes:
            advice = f"use --baseline {recipes[0]}" if recipes else "omit --baseline"
            raise UserError(
                f"--baseline {baseline} has no finished run; recipes with finished runs: "
                f"{', '.join(recipes) or 'none'}; {advice}"
            )

    @property
    def unfinished(self) -> list[tuple[str, Run]]:
        """Return each unfinished run with the label of its group."""
        placed = [(group.label, run) for group in self.groups for run in group.unfinished]
        return placed + [(run.recipe, run) for run in self.runs if not run.settings]

    def find_baseline(self, group: Group) -> Group | None:
        """Return the baseline group that a finished group is compared with, or None if none is comparable."""
        return self.baseline.of.get(group.label)

    def gap_percent(self, group: Group) -> float | None:
        """Return the percentage of its baseline's absolute loss by which this group's mean final loss exceeds it.

        Return None if the group has no baseline or is its own baseline, or if the baseline's loss is 0 or not finite.
        """
        base = self.find_baseline(group)
        if base is None or base is group or not base.loss or not math.isfinite(base.loss):
            return None
        return 100 * (group.loss - base.loss) / abs(base.loss)

    @cached_property
    def front(self) -> list[Group]:
        """Return the groups that no other group dominates in final loss and payload bytes, ordered by bytes."""
        points = [(group, group.loss, group.stat(PAYLOADS_SENT).mean) for group in self.finished]
        finite = [point for point in points if math.isfinite(point[1])]
        undominated = [
            candidate for candidate in finite if not any(dominates(other[1:], candidate[1:]) for other in finite)
        ]
        return [group for group, _, _ in sorted(undominated, key=lambda place: place[2])]

    def notes(self) -> list[str]:
        """Return the notes that readers need to interpret the numbers."""
        return [
            *self.damage_notes(),
            *self.repeated_seed_notes(),
            *filter(None, map(divergence_note, self.finished)),
            *self.baseline_notes(),
        ]

    def damage_notes(self) -> list[str]:
        """Return one note for each run whose metrics.jsonl has damaged lines."""
        return [
            f"{r.path}/metrics.jsonl: {r.damaged_lines} damaged line(s) skipped" for r in self.runs if r.damaged_lines
        ]

    def repeated_seed_notes(self) -> list[str]:
        """Return one note for each group with several runs of the same seed, which are not independent samples."""
        notes = []
        for group in self.finished:
            seeds = [run.settings.get("seed") for run in group.finished]
            repeated = sorted({str(seed) for seed in seeds if seeds.count(seed) > 1})
            if repeated:
                notes.append(f"{group.label}: seed {', '.join(repeated)} was run more than once; every run is counted")
        return notes

    def baseline_notes(self) -> list[str]:
        """Return notes on gaps to the baseline that are missing, ambiguous, or between runs of different lengths."""
        bases = self.baseline.of
        if not bases:
            return [f"no finished run of the baseline {self.baseline.recipe}, so there are no gaps"]
        uneven = [g for g in self.finished if g.label in bases and differs(tokens(g), tokens(bases[g.label]))]
        incomparable = [g.label for g in self.finished if g.label not in bases]
        return [
            *(["some gaps compare runs of different lengths: check their token counts"] if uneven else []),
            *(
                [
                    f"no gap, because no finished {self.baseline.recipe} run has the same model, data and evaluation: "
                    + "; ".join(incomparable)
                ]
                if incomparable
                else []
            ),
        ]


def divergence_note(group: Group) -> str:
    """Return a note on the finished runs of a group that diverged, after which no mean can be drawn, or ""."""
    ends = [last_finite_round(run) for run in group.finished if not math.isfinite(last_loss(run))]
    if not ends:
        return ""
    first = ", the first" if len(ends) > 1 else ""
    runs = f"{len(ends)} of {len(group.finished)} runs of {group.label}"
    return f"{runs} diverged{first} after round {min(ends)}: the mean curve ends there"


def last_loss(run: Run) -> float:
    """Return the last validation loss of a run, or 0 if it has none."""
    return run.validations[-1]["val_loss"] if run.validations else 0.0


def last_finite_round(run: Run) -> int:
    """Return the last round of a run after which its validation loss was finite, or 0."""
    return max((row["round"] for row in run.validations if math.isfinite(row["val_loss"])), default=0)


def dominates(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    """Return whether every entry of `a` is at most the corresponding entry of `b`, and at least one is lower."""
    return all(x <= y for x, y in zip(a, b, strict=True)) and a != b


def differs(a: float, b: float) -> bool:
    """Return whether two token counts differ by more than the fraction SAME_TOKENS of the larger one."""
    return abs(a - b) > SAME_TOKENS * max(a, b)


def tokens(group: Group) -> float:
    """Return the mean token count of a group's finished runs."""
    return group.stat("tokens").mean
