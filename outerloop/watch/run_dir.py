"""Follow a run directory on this machine, whether its run is finished or still running. Nothing is written to it."""

from __future__ import annotations

import time
from pathlib import Path

from outerloop.report.metric_rows import parse_row
from outerloop.report.runs import read_died, read_results, read_settings
from outerloop.watch.model.page import Link, Page
from outerloop.watch.model.run_state import RunState, Surroundings
from outerloop.watch.rows import RowFile

RESULTS = {"model": "hf", "figure": "loss.png", "summary": "summary.json", "settings": "config.yaml"}
"""Name of a result -> its path in the run directory. The page also shows the last checkpoint."""


class RunDirectory:
    """A source of pages: one run directory.

    Args:
        path: the run directory.
    """

    every_s = 1.0

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = RowFile(path / "metrics.jsonl")
        self.state = RunState(read_settings(path))

    def read(self) -> Page:
        """Read what has been added to the directory since the last call, and return the page."""
        if not self.state.settings and read_settings(self.path):
            self.rows.restart()
        for batch in self.rows.read():
            if batch.restarted:
                self.state = RunState(read_settings(self.path))
            for line in batch.lines:
                if (row := parse_row(line)) is not None:
                    self.state.add(row)
        return self.state.page(self.surroundings())

    def surroundings(self) -> Surroundings:
        """Return what the page shows in addition to the rows of metrics.jsonl."""
        return Surroundings(
            name=self.path.resolve().name,
            now_s=time.time(),
            updated_s=self.rows.updated_s(),
            results=read_results(self.path),
            died=str(read_died(self.path).get("why") or ""),
            links=self.links(),
        )

    def links(self) -> list[Link]:
        """Return the results that are on disk, the newest complete checkpoint first."""
        sealed = sorted(file.parent.name for file in (self.path / "checkpoints").glob("step-*/sealed"))
        found: list[Link] = [{"name": "last checkpoint", "path": f"checkpoints/{name}"} for name in sealed[-1:]]
        found += [{"name": name, "path": path} for name, path in RESULTS.items() if (self.path / path).exists()]
        return found

    def close(self) -> None:
        """Close the source. Nothing is open between two calls of `read`."""
