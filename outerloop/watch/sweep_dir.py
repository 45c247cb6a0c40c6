"""Follow a sweep, or any folder that contains runs, and compare the runs as `outerloop report` does."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from outerloop.report import table
from outerloop.report.groups import Comparison, Group
from outerloop.report.runs import DIED, FRESH_S, PAYLOADS_SENT, Run, read, runs_under
from outerloop.report.table import Table
from outerloop.watch.model.empty import empty_header
from outerloop.watch.model.page import VERSION, Page, ParetoPoint, RunPhase, TableText
from outerloop.watch.model.values import shown, text

FILES = ("metrics.jsonl", "summary.json", "config.yaml", DIED)
"""Files of a run that the comparison reads."""


@dataclass(frozen=True)
class Stamp:
    """Modification time (ns) and size of each file of a run, and whether the newest is younger than FRESH_S."""

    files: tuple[tuple[int, int], ...]
    is_fresh: bool

    @property
    def newest_ns(self) -> int:
        """Return when the newest file was modified, in nanoseconds since 1970, or 0 if there is no file."""
        return max(time_ns for time_ns, _ in self.files)


class SweepDirectory:
    """A source of pages: all runs in or under a folder. A run is read again only after one of its files has changed.

    The page names runs relative to the folder, so that it does not show where the folder is.

    Args:
        path: the folder.
    """

    every_s = 1.0

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs: dict[Path, tuple[Stamp, Run]] = {}

    def read(self) -> Page:
        """Read the runs that have changed, and return the page."""
        self.runs = {path: self.run(path) for path in runs_under(self.path)}
        known = self.runs.values()
        is_running = any(stamp.is_fresh and run.results is None for stamp, run in known)
        return sweep_page(
            self.path.resolve().name,
            [run for _, run in known],
            state="running" if is_running else "finished",
            updated_s=max((stamp.newest_ns for stamp, _ in known), default=0) / 1e9,
        )

    def run(self, path: Path) -> tuple[Stamp, Run]:
        """Return the stamp and the content of a run, from memory if no file has changed."""
        now = stamp_of(path, time.time())
        known = self.runs.get(path)
        if known is not None and known[0] == now:
            return known
        return now, replace(read(path), path=path.relative_to(self.path))

    def close(self) -> None:
        """Close the source. Nothing is open between two calls of `read`."""


def stamp_of(path: Path, now_s: float) -> Stamp:
    """Return the stamp of a run at a time in seconds since 1970."""
    files = tuple(stamp_of_file(path / name) for name in FILES)
    return Stamp(files, is_fresh=now_s - max(time_ns for time_ns, _ in files) / 1e9 < FRESH_S)


def stamp_of_file(file: Path) -> tuple[int, int]:
    """Return modification time (ns) and size of a file, or (0, 0) if it is missing or its folder cannot be read."""
    try:
        found = file.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def sweep_page(name: str, runs: Sequence[Run], *, state: RunPhase, updated_s: float) -> Page:
    """Return the page of a sweep: the tables and the Pareto figure of `outerloop report`."""
    comparison = Comparison(runs, baseline=None)
    tables = [table.results(comparison), table.unfinished(comparison), table.settings(comparison, everything=False)]
    return {
        "version": VERSION,
        "kind": "sweep",
        "run": empty_header(name, state, updated_s),
        "phase": None,
        "peers": [],
        "timeline": {"rounds": [], "cells": []},
        "curves": [],
        "events": [],
        "contributors": [],
        "counted": None,
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
        "bytes": shown(group.stat(PAYLOADS_SENT).mean),
        "loss": shown(group.loss),
        "runs": len(group.finished),
        "front": group in comparison.front,
    }
