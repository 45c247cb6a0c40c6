"""Compute the page of one run from the rows of its metrics.jsonl, its settings and its summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outerloop.watch.model.charts import Charts
from outerloop.watch.model.event_log import EventLog
from outerloop.watch.model.header import SILENT_S, RunFacts, header, landing_interval
from outerloop.watch.model.page import VERSION, Link, Page, Strip
from outerloop.watch.model.phase import strip
from outerloop.watch.model.run_counts import RunCounts
from outerloop.watch.model.run_events import add_event
from outerloop.watch.model.timeline import Timeline, last_late_s
from outerloop.watch.model.values import count, finite, setting, text
from outerloop.watch.model.worker import Worker

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Surroundings:
    """Everything that the page shows in addition to the rows of metrics.jsonl.

    name: name of the run directory.
    now_s: time of this observation, in seconds since 1970.
    updated_s: time at which the last row was written, in seconds since 1970; None if there is no row.
    results: summary.json, or None if the run has not finished.
    died: why a job of a sweep died, or "".
    links: files and folders that the run has written.
    """

    name: str
    now_s: float
    updated_s: float | None = None
    results: Row | None = None
    died: str = ""
    links: Sequence[Link] = ()

    @property
    def age_s(self) -> float:
        """Return the seconds since the last row was written, or 0 if there is no row."""
        return 0.0 if self.updated_s is None else max(0.0, self.now_s - self.updated_s)


@dataclass
class RunState:
    """The state of one run, updated row by row. `settings`: config.yaml with dotted keys."""

    settings: Mapping[str, Any]
    workers: dict[int, Worker] = field(default_factory=dict)
    timeline: Timeline = field(default_factory=Timeline)
    events: EventLog = field(default_factory=EventLog)
    facts: RunFacts = field(default_factory=RunFacts)

    def __post_init__(self) -> None:
        self.charts = Charts(count(setting(self.settings, "workers", 1)))
        self.public_name = text(setting(self.settings, "exchange.public_name", ""))
        self.counts = RunCounts(self.public_name)

    def add(self, row: Row) -> None:
        """Update the state from one row."""
        worker = self.worker(count(row["worker"])) if "worker" in row else None
        if worker is not None:
            worker.add(row)
            self.counts.add(row, worker.name)
        if worker is not None and row["event"] == "round":
            self.add_round(worker, row)
        self.facts.add(row)
        self.charts.add(row)
        add_event(self.events, row, worker)

    def worker(self, index: int) -> Worker:
        """Return the worker with this index, and create it if this is its first row."""
        return self.workers.setdefault(index, Worker(index, f"{index:03d}"))

    def add_round(self, worker: Worker, row: Row) -> None:
        """Record in the timeline when the worker's payload of a round was ready."""
        waited_s = (finite(row.get("wait_s")) or 0.0) + (finite(row.get("land_s")) or 0.0)
        if row.get("failed"):
            self.timeline.add(worker.name, count(row.get("round")), "failed")
        elif not row.get("took_part", True):
            self.timeline.add(worker.name, count(row.get("round")), "absent")
        else:
            self.timeline.add(worker.name, count(row.get("round")), (finite(row.get("wall_s")) or 0.0) - waited_s)

    def page(self, around: Surroundings) -> Page:
        """Return the page. `around`: its content from sources other than the rows."""
        workers = [self.workers[index] for index in sorted(self.workers)]
        seq_len = count(setting(self.settings, "inner.seq_len")) or None
        silent = around.results is None and around.age_s > SILENT_S
        timeline = self.timeline.page([worker.name for worker in workers])
        peers = [
            worker.page(public_name=self.public_name, seq_len=seq_len, late_s=last_late_s(cells))
            for worker, cells in zip(workers, timeline["cells"], strict=True)
        ]
        contributors, counted = self.counts.page(peers)
        return {
            "version": VERSION,
            "kind": "run",
            "run": header(self.facts, workers, self.settings, around, silent=silent),
            "phase": None if around.results or silent else self.strip(workers),
            "peers": peers,
            "timeline": timeline,
            "curves": self.charts.page(),
            "events": list(self.events.entries),
            "contributors": contributors,
            "counted": counted,
            "sweep": None,
        }

    def strip(self, workers: Sequence[Worker]) -> Strip | None:
        """Return the stage of the worker that is furthest behind among those that still train; None if none does."""
        training = [worker for worker in workers if worker.is_active]
        if not training:
            return None
        last = min(training, key=lambda worker: (worker.round, worker.step, worker.index))
        delay = count(setting(self.settings, "schedule.delay"))
        waiting = sum(bool(worker.waiting) for worker in training)
        absent_rounds = count(setting(self.settings, "exchange.absent_rounds"))
        gone = [worker for worker in workers if not worker.is_active and worker.round + absent_rounds >= last.round]
        return strip(last, waiting=waiting, gone=gone, sync_every=landing_interval(self.settings), delay=delay)
