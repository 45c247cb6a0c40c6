"""Supervise the workers of a run: collect their events, seal checkpoints, and stop the run if it cannot continue."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from outerloop.config import build, run_directory
from outerloop.config.run_directory import RunDir
from outerloop.inner.events import Event
from outerloop.launcher.address_lines import address_lines
from outerloop.launcher.validation_merge import ValidationMerge
from outerloop.launcher.worker_pool import WorkerPool, died_event
from outerloop.sinks.jsonl import Jsonl
from outerloop.sinks.sink import Sinks, print_line
from outerloop.state import checkpoint
from outerloop.types import UserError

Row = dict[str, Any]


ANSWER_S = 10.0
"""Seconds that workers have, after an interrupt, to report which inner step they have begun."""
SAVE_S = 120.0
"""Seconds that workers have, after these reports, to reach a common inner step and save."""
ASK_S = 5.0
"""Seconds without an event after which workers are asked again whether they can reach the common inner step."""


class WorkerCrashed(Exception):
    """Raised if a failed worker ends the run. The message is one line or the worker's traceback."""


def no_checkpoint_event(worker: int) -> Event:
    """Return a "status" event: no checkpoint is saved after the death of a worker, and what to do."""
    text = (
        f"no checkpoint is saved from now on, because worker {worker} ended: stop this run and start the same command"
        " again, which resumes all workers from the last checkpoint"
    )
    return {"event": "status", "worker": worker, "step": 0, "text": text}


class Supervisor:
    """Processes the events of a run's workers until all workers have left.

    It writes each event to metrics.jsonl with `wall_s` added, plus one "validation" row for each evaluation that is
    complete.

    Args:
        config: configuration of the run.
        run: directory of the run.
        console: the terminal.
        sinks: loggers that receive every row of metrics.jsonl; already started.
        show_address: called with the addresses of the first worker, once they are known. The default prints what to
            type on other machines.
    """

    def __init__(
        self,
        config: DictConfig,
        run: RunDir,
        console: Console,
        sinks: Sinks,
        *,
        show_address: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        self.config, self.run, self.console, self.sinks = config, run, console, sinks
        self.show_address = show_address or self.print_addresses
        earlier = run_directory.rows_until(run.path, run.resume_step)
        self.start_s = time.monotonic() - (earlier[-1]["wall_s"] if earlier else 0.0)
        self.rows = Jsonl(run.path / "metrics.jsonl", earlier=earlier)
        self.validation = ValidationMerge(range(config.workers))
        self.saved: dict[int, set[int]] = {}
        self.active = set(range(config.workers))
        self.ready: set[int] = set()
        self.died: set[int] = set()
        self.outvoted = self.last_death = ""
        self.done_s: float | None = None
        self.rewound = self.stopping = False

    def supervise(self, pool: WorkerPool) -> None:
        """Start the workers and process their events. At the end, or after an error, stop and join the workers.

        Raises KeyboardInterrupt if the run is interrupted, after saving a checkpoint if possible.
        """
        checkpoint.discard_after(self.run.path, self.run.resume_step)
        try:
            pool.start()
            self.process_events(pool)
            self.rows.sync()
        except KeyboardInterrupt:
            self.save_before_leaving(pool)
            raise
        finally:
            pool.stop()
            pool.join()
            self.rows.close()

    def process_events(self, pool: WorkerPool) -> None:
        """Process events until every worker has left.

        Raises the error of the first worker that fails, and WorkerCrashed if all workers end before the run is done.
        """
        while self.active:
            for event in self.next_events(pool):
                self.handle(event)
        if self.done_s is None:
            raise WorkerCrashed(self.outvoted or self.last_death)

    def next_events(self, pool: WorkerPool) -> list[Event]:
        """Return the next event in a one-element list.

        Once a worker is done, the others have `round_timeout_s` seconds to finish. After this timeout, return a "died"
        event for each worker that is still active.
        """
        if self.done_s is None:
            return [pool.events.get()]
        try:
            left_s = self.done_s + self.config.round_timeout_s - time.monotonic()
            return [pool.events.get(timeout=max(0.0, left_s))]
        except queue.Empty:
            return [died_event(worker, "did not finish with the others") for worker in sorted(self.active)]

    def save_before_leaving(self, pool: WorkerPool) -> None:
        """Let all workers train to a common inner step, save and leave.

        They have ANSWER_S seconds to report the inner step that they have begun, then SAVE_S seconds to reach the
        common step and save. Do nothing if the workers have not begun to train, or if one has finished. Only print the
        reason if one has died. Return early if a worker cannot reach that step, because too few other peers are
        reachable.
        """
        if len(self.ready) < self.config.workers or self.done_s is not None:
            return
        if self.died:
            print_line(self.console, f"stopping without saving, because worker {min(self.died)} ended")
            return
        pool.request_stop()
        print_line(self.console, "saving after this inner step; interrupt again to stop without saving")
        self.stopping, end_s = True, time.monotonic() + ANSWER_S
        begun: dict[int, int] = {}
        while self.active and (left_s := end_s - time.monotonic()) > 0:
            try:
                event = pool.events.get(timeout=min(left_s, ASK_S))
            except queue.Empty:
                pool.request_stop()
                continue
            if event["event"] != "stopping":
                self.handle(event)
                continue
            if event["blocked"]:
                print_line(self.console, f"stopping without saving: {event['blocked']}")
                return
            if len(begun) == self.config.workers:
                continue
            begun[event["worker"]] = event["step"]
            if len(begun) == self.config.workers:
                if not max(begun.values()):
                    return
                pool.stop_after(max(begun.values()))
                end_s = time.monotonic() + SAVE_S

    def handle(self, event: Event) -> None:
        """Process one event of a worker."""
        worker = event["worker"]
        if event["event"] == "back":
            self.rewind(event["step"])
            return
        event, kind = self.classify(event)
        self.write(event)
        if kind == "error":
            raise (UserError if event["kind"] == "user" else WorkerCrashed)(event["text"])
        if kind == "ready":
            self.ready.add(worker)
        elif kind == "done":
            self.done_s = time.monotonic()
        elif kind == "died":
            self.on_worker_died(event)
        elif kind == "saved":
            self.on_saved(event)
        elif kind == "address" and worker == 0 and event["addresses"]:
            self.show_address(event["addresses"])
        if kind in ("left", "died"):
            self.active.discard(worker)
        for row in self.validation.add(event):
            self.write(row)

    def classify(self, event: Event) -> tuple[Event, str]:
        """Return the event to record, and the kind of event that determines how it is handled.

        An error that ends only one worker, not the run, is recorded as a "died" event. So is the end of a worker that a
        signal has ended: it leaves before any worker is done, although the run is not being stopped.
        """
        if event["event"] == "left" and self.done_s is None and not self.stopping:
            return died_event(event["worker"], "left before the end of the run"), "died"
        if event["event"] != "error":
            return event, event["event"]
        death = died_event(event["worker"], event["text"])
        if event["kind"] == "alone" and self.done_s is not None:
            return death, "died"
        if event["kind"] == "outvoted":  # the other workers of this machine write the model
            self.outvoted = event["text"]
            self.died.add(event["worker"])
            return death, "left"
        return event, "error"

    def rewind(self, step: int) -> None:
        """Unseal the checkpoints after `step`, from which the peers resume, and delete the rows of metrics.jsonl."""
        if not self.rewound:
            self.rewound = True
            checkpoint.unseal_after(self.run.path, step)
            self.rows.rewrite(run_directory.rows_until(self.run.path, step))
            print_line(self.console, f"going back to inner step {step}, whose checkpoint most peers have")

    def on_worker_died(self, event: Event) -> None:
        """Record that a worker died, and that no checkpoint is saved from now on.

        Raises WorkerCrashed if the others cannot continue without it.
        """
        self.died.add(event["worker"])
        self.last_death = event["text"]
        peers = self.config.exchange.get("peers", self.config.workers)
        waits_for_all = build.capabilities(self.config).waits_for_all
        min_peers = peers if waits_for_all else self.config.exchange.get("min_peers") or min(2, peers)
        alive = peers - len(self.died)
        if len(self.ready) < self.config.workers:
            raise WorkerCrashed(f"{event['text']}; the run had not started")
        if alive < min_peers and self.done_s is None:
            raise WorkerCrashed(
                f"{event['text']}; {alive} of {peers} peers are left, but the run needs at least {min_peers}"
            )
        if len(self.died) == 1 and self.active - self.died and self.done_s is None:
            self.write(no_checkpoint_event(event["worker"]))

    def on_saved(self, event: Event) -> None:
        """Seal the checkpoint of an inner step once every local worker has saved its part of it.

        The rows of metrics.jsonl are written to disk first. Checkpoints without the part of a worker that has died are
        deleted, because a run cannot resume from them. The checkpoint that an interrupted run saves does not replace an
        older one, because other machines may have no checkpoint of the same step.
        """
        workers = self.saved.setdefault(event["step"], set())
        workers.add(event["worker"])
        if not workers >= self.active:
            return
        del self.saved[event["step"]]
        if len(workers) == self.config.workers:
            self.rows.sync()
            checkpoint.seal(self.run.path, event["step"], keep=self.config.checkpoint.keep + self.stopping)
        elif self.died:
            checkpoint.drop(self.run.path, event["step"])

    def print_addresses(self, addresses: Sequence[str]) -> None:
        """Print what to type on other machines to join, if the run still needs peers or admits late joiners."""
        for line in address_lines(self.config, self.run.path, addresses):
            print_line(self.console, line)

    def write(self, row: Row) -> None:
        """Write one row to metrics.jsonl and to every sink."""
        row["wall_s"] = round(time.monotonic() - self.start_s, 3)
        self.rows.write(row)
        self.sinks.write(row)
