"""AXIS log: what a sink is, and all sinks of one run. A sink that fails is disabled; logging never stops training.

A row is a flat dictionary with an "event" (inner/events.py): the events of all local workers with `wall_s` added, a
"validation" row for each complete evaluation and, after the last round, a "summary" row with the content of
summary.json. A class of your own is a sink with `log=[console,mine]` and mine.yaml in a folder `log` of the
configuration, or with `+log.mine._target_=mymodule.MySink`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from outerloop.types import printable

Row = dict[str, Any]


def print_line(console: Console, text: str) -> None:
    """Print one plain line. Unprintable characters, which may come from other peers, are made printable."""
    console.print(printable(text), highlight=False, soft_wrap=True, markup=False)


@dataclass(frozen=True)
class RunInfo:
    """The facts about a run that sinks may show.

    Args:
        path: the run directory.
        settings: the whole configuration, nested.
        resume_step: the inner step that the run resumes from; None at its start.
        name: of the run. In a sweep it has the recipe and the swept options: sparseloco-seed0.
        group: the sweep, or `exchange.run` if machines share one; None otherwise.
        tags: the recipe, the class of each axis, and the swept options.
        console: the terminal.
    """

    path: Path
    settings: Mapping[str, Any]
    resume_step: int | None
    name: str
    group: str | None
    tags: tuple[str, ...]
    console: Console


class Sink(Protocol):
    """One place that rows go to. Its constructor takes the options in its yaml file, and raises UserError."""

    def start(self, run: RunInfo) -> None:
        """Prepare for the rows of this run. Called once, before the first row."""
        ...

    def write(self, row: Row) -> None:
        """Process one row. Rows with unknown events are to be ignored."""
        ...

    def close(self) -> None:
        """Write or upload the remaining data. Without a "summary" row before, the run has not finished."""
        ...


class Sinks:
    """The sinks of one run. One that raises is reported and gets no more rows.

    Args:
        sinks: name in the configuration -> sink.
    """

    def __init__(self, sinks: Mapping[str, Sink]) -> None:
        self.sinks = dict(sinks)

    def start(self, run: RunInfo) -> None:
        """Start all sinks."""
        self.console = run.console
        self.call("start", run)

    def write(self, row: Row) -> None:
        """Write one row to all sinks."""
        self.call("write", row)

    def close(self) -> None:
        """Close all sinks."""
        self.call("close")

    def call(self, method: str, *args: Any) -> None:
        """Call a method of every sink, and drop the sinks that fail."""
        for name, sink in list(self.sinks.items()):
            try:
                getattr(sink, method)(*args)
            except Exception as error:
                del self.sinks[name]
                print_line(self.console, f"log.{name} failed and is disabled from now on: {error}")
