"""AXIS log: the interface of a sink, and the sinks of one run. If a sink fails, it is disabled and training continues.

A row is a flat dictionary with an "event" (inner/events.py). Each event of a local worker becomes one row, with
`wall_s` added. There is also a "validation" row for each complete evaluation and, after the last round, a "summary" row
with the content of summary.json. To use your own sink class, put mine.yaml into the folder `log` of the configuration
and set `log=[console,mine]`, or set `+log.mine._target_=mymodule.MySink`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from outerloop.types import printable

Row = dict[str, Any]


def print_line(console: Console, text: str) -> None:
    """Print one plain line, escaping non-printable characters, which may come from other peers.

    Nothing in it is replaced, neither [b] as markup nor :a: (in an IPv6 address) as an emoji.
    """
    console.print(printable(text), highlight=False, soft_wrap=True, markup=False, emoji=False)


@dataclass(frozen=True)
class RunInfo:
    """Information about a run for its sinks.

    Args:
        path: the run directory.
        settings: the whole configuration, nested.
        resume_step: the inner step from which the run resumes, or None if it starts from scratch.
        name: name of the run. In a sweep, the recipe and the swept options, such as sparseloco-seed0.
        group: name of the sweep, or `exchange.run` if several machines share the run; None otherwise.
        tags: the recipe, each axis with its class (compress=BySize), and the swept options.
        console: the terminal.
        earlier: rows of metrics.jsonl up to `resume_step`; empty if the run starts from scratch.
    """

    path: Path
    settings: Mapping[str, Any]
    resume_step: int | None
    name: str
    group: str | None
    tags: tuple[str, ...]
    console: Console
    earlier: Sequence[Row] = ()


class Sink(Protocol):
    """A receiver of rows. Its constructor takes the options in its yaml file as arguments and may raise UserError."""

    def start(self, run: RunInfo) -> None:
        """Prepare for the rows of this run. Called once, before the first row."""
        ...

    def write(self, row: Row) -> None:
        """Process one row. A sink must ignore rows with unknown events."""
        ...

    def close(self) -> None:
        """Write or upload the remaining data. If `write` received no "summary" row, the run did not finish."""
        ...


class Sinks:
    """The sinks of one run. If a sink raises an error, the error is printed and the sink is removed.

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
        """Call a method of every sink, and remove the sinks that fail."""
        for name, sink in list(self.sinks.items()):
            try:
                getattr(sink, method)(*args)
            except Exception as error:
                del self.sinks[name]
                print_line(self.console, f"log.{name} failed and is disabled from now on: {error}")
