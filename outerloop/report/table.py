"""Build the tables of a report from plain-text cells, for both the HTML page and the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from outerloop.report import setting_diff
from outerloop.report.groups import Comparison, Group
from outerloop.report.runs import PAYLOADS_SENT, Run
from outerloop.report.units import format_count, format_seconds, format_small, format_stat

DASH = "–"
"""Text of a cell without a value."""


@dataclass(frozen=True)
class Table:
    """A table of text cells with title and column headings. The first `words` columns hold text, the others numbers."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    words: int = 1


def results(comparison: Comparison) -> Table:
    """Return a table with one row per group that has finished runs, sorted by loss."""
    gap_to = f"gap to {comparison.baseline.recipe}"
    reached = ["group", "n", "val_loss", gap_to, "sent/worker", "front"]
    waits = has_waits(comparison)
    caption = "Finished runs: mean ± standard deviation over n seeds"
    return Table(
        "; ".join(filter(None, [caption, comparison.baseline.caption])),
        [*reached, "bits/param/round", "tokens", *(["wait_s"] if waits else []), "wall_s"],
        [list(result(comparison, group, waits=waits)) for group in comparison.finished],
    )


def has_waits(comparison: Comparison) -> bool:
    """Return whether workers of a finished run waited for each other, rather than taking turns in one process."""
    return not all(takes_turns(group) for group in comparison.finished)


def takes_turns(group: Group) -> bool:
    """Return whether the workers of a group's runs were threads of one process, so that their waits mean nothing."""
    return group.runs[0].settings.get("workers_as") == "threads"


def result(comparison: Comparison, group: Group, *, waits: bool) -> Iterator[str]:
    """Yield the cells of one group's row in `results`. `waits`: whether the table has the column wait_s."""
    yield group.label
    yield str(len(group.finished))
    yield format_stat(group.stat("val_loss"), decimals=3)
    yield gap(comparison, group)
    yield format_count(group.stat(PAYLOADS_SENT), "B")
    yield "●" if group in comparison.front else ""
    yield format_small(group.stat("bits_per_param_per_round"))
    yield format_count(group.stat("tokens"))
    if waits:
        yield DASH if takes_turns(group) else format_seconds(group.stat("wait_s"))
    yield format_seconds(group.stat("wall_s"))


def gap(comparison: Comparison, group: Group) -> str:
    """Return the percentage by which a group's loss exceeds its baseline's, as text for a cell."""
    if comparison.find_baseline(group) is group:
        return "baseline"
    percent = comparison.gap_percent(group)
    return DASH if percent is None else f"{percent:+.2f} %"


def unfinished(comparison: Comparison) -> Table:
    """Return a table with one row per run that died, stopped or is still running."""
    return Table(
        "Unfinished runs, excluded from the means",
        ["run", "group", "why", "last round", "last loss"],
        [[str(r.path), label, r.why, str(r.last_round), last_loss(r)] for label, r in comparison.unfinished],
        words=3,
    )


def last_loss(run: Run) -> str:
    """Return the last validation loss, or else the last training loss, or else a dash."""
    if run.validations:
        return f"{run.validations[-1]['val_loss']:.3f}"
    return DASH if run.last_train_loss is None else f"{run.last_train_loss:.3f} (training)"


def runs(comparison: Comparison) -> Table:
    """Return a table with one row per finished run."""
    placed = [(group, run) for group in comparison.finished for run in group.finished]
    return Table(
        "Every finished run",
        ["run", "group", "seed", "val_loss", "damaged lines"],
        [
            [
                str(run.path),
                group.label,
                str(run.settings.get("seed", DASH)),
                f"{run.results['val_loss']:.4f}" if run.results else DASH,
                str(run.damaged_lines),
            ]
            for group, run in placed
        ],
        words=2,
    )


def settings(comparison: Comparison, *, everything: bool) -> Table:
    """Return a table with one row per setting that differs between groups, and one column per group.

    The rows are the recipe and the settings that appear in labels. If `everything` is true, all other differing
    settings follow, such as those that a recipe implies.
    """
    groups = [group.settings for group in comparison.groups]
    first = [key for key in setting_diff.differing_keys(groups) if key in ("recipe", *setting_diff.named_keys(groups))]
    others = [key for key in setting_diff.differing_keys(groups) if key not in first]
    keys = first + (others if everything else [])
    rows = [[key, *(setting_diff.format_value(group, key) for group in groups)] for key in keys]
    columns = ["setting", *(group.label for group in comparison.groups)]
    return Table("", columns, rows, words=len(columns))
