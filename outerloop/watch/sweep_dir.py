"""Follow a sweep, or any folder that contains runs, as `outerloop report` compares them."""

from __future__ import annotations

from pathlib import Path

from outerloop.report import table
from outerloop.report.groups import Comparison, Group
from outerloop.report.runs import Run, read, runs_under
from outerloop.report.table import Table
from outerloop.watch.model.empty import empty_header
from outerloop.watch.model.page import VERSION, Page, ParetoPoint, TableText
from outerloop.watch.model.values import shown, text

FILES = ("metrics.jsonl", "summary.json", "config.yaml", "died.json")
"""Files of a run that the comparison reads."""
Stamp = tuple[tuple[int, int], ...]


class SweepDirectory:
    """A source of pages: all runs in or under a folder. A run is read again only after one of its files has changed.

    Args:
        path: the folder.
    """

    every_s = 1.0

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs: dict[Path, tuple[Stamp, Run]] = {}

    def read(self) -> Page:
        """Read the runs that have changed, and return the page."""
        found = runs_under(self.path)
        self.runs = {path: self.run(path) for path in found}
        updated_ns = max((time_ns for now, _ in self.runs.values() for time_ns, _ in now), default=0)
        return sweep_page(self.path, [run for _, run in self.runs.values()], updated_s=updated_ns / 1e9)

    def run(self, path: Path) -> tuple[Stamp, Run]:
        """Return the stamp and the content of a run, from memory if no file has changed."""
        now = stamp(path)
        known = self.runs.get(path)
        return known if known is not None and known[0] == now else (now, read(path))

    def close(self) -> None:
        """Close the source. Nothing is open between two calls of `read`."""


def stamp(path: Path) -> Stamp:
    """Return modification time (ns) and size of each file of a run; zeros for a missing file."""
    stats = [file.stat() if (file := path / name).exists() else None for name in FILES]
    return tuple((one.st_mtime_ns, one.st_size) if one else (0, 0) for one in stats)


def sweep_page(path: Path, runs: list[Run], *, updated_s: float) -> Page:
    """Return the page of a sweep: the tables and the Pareto figure of `outerloop report`."""
    comparison = Comparison(runs, baseline=None)
    tables = [table.results(comparison), table.unfinished(comparison), table.settings(comparison, everything=False)]
    return {
        "version": VERSION,
        "kind": "sweep",
        "run": empty_header(path.resolve().name, "running" if comparison.unfinished else "finished", updated_s),
        "phase": None,
        "peers": [],
        "timeline": {"rounds": [], "peers": [], "cells": []},
        "curves": [],
        "events": [],
        "contributors": [],
        "sweep": {
            "tables": [table_text(content) for content in tables],
            "pareto": [pareto_point(group, comparison) for group in comparison.finished],
            "notes": [text(note) for note in comparison.notes()],
        },
    }


def table_text(content: Table) -> TableText:
    """Return a table of the report, with its texts shortened."""
    rows = [[text(cell) for cell in row] for row in content.rows]
    columns = [text(column) for column in content.columns]
    return {"title": content.title or "Settings that differ", "columns": columns, "rows": rows, "words": content.words}


def pareto_point(group: Group, comparison: Comparison) -> ParetoPoint:
    """Return the place of a group of finished runs in the figure of final loss against bytes."""
    return {
        "label": text(group.label),
        "bytes": shown(group.stat("bytes_sent_per_worker").mean),
        "loss": shown(group.loss),
        "runs": len(group.finished),
        "front": group in comparison.front,
    }
