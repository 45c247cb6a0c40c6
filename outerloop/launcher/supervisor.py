"""`outerloop train`: check the settings, claim the run directory, start the workers, collect events, write results."""

from __future__ import annotations

import json
import logging
import queue
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from outerloop.config import build, run_directory
from outerloop.config.run_directory import RunDir
from outerloop.inner.events import Event
from outerloop.launcher.local_pool import ProcessWorkerPool, ThreadWorkerPool, WorkerPool, died
from outerloop.launcher.validation_merge import Shares
from outerloop.sinks.console import Terminal, readable_bytes
from outerloop.sinks.jsonl import Jsonl
from outerloop.state import checkpoint
from outerloop.types import UserError

Row = dict[str, Any]
FormTeam = Callable[[DictConfig, Path, int | None], WorkerPool]
"""(settings, run directory, inner step to resume from) -> the worker pool, not started yet."""
TEAMS: dict[str, FormTeam] = {"threads": ThreadWorkerPool, "processes": ProcessWorkerPool}


class WorkerCrashed(Exception):
    """A worker ended with an error that is not a UserError. The text is its traceback."""


def train(config: DictConfig, form: FormTeam | None = None) -> Row:
    """Train one run to its end and return its summary, also if the run was already finished.

    `form` creates the worker pool. By default the workers are threads or processes of this machine, depending on the
    exchange. Raises UserError or WorkerCrashed.
    """
    console = Console()
    build.limit_payloads(config, build.check_parts(config))
    with closing(run_directory.open_run(config)) as run:
        return follow(config, run, console, form or TEAMS[config.workers_as])


def follow(config: DictConfig, run: RunDir, console: Console, form: FormTeam) -> Row:
    """Train in a run directory that is already locked. Return the summary."""
    for note in run.notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    if run.finished:
        console.print(
            f"{run.path} is a finished run: nothing to do. Set another run_dir= to train again.", soft_wrap=True
        )
        return json.loads((run.path / "summary.json").read_text())
    if run.resume_step is not None:
        console.print(f"resuming after inner step {run.resume_step}", highlight=False)
    console.print(f"{config.recipe}, {config.workers} workers, results in {run.path}", highlight=False, soft_wrap=True)
    Supervisor(config, run, console).work(form(config, run.path, run.resume_step))
    summary = hand_in(config, run.path)
    tell_results(summary, run.path, console)
    return summary


class Supervisor:
    """Processor of the events of one run's workers, until all workers have left.

    Rows of metrics.jsonl are the workers' events with `wall_s` added, and a "validation" row for each evaluation whose
    shares are complete.
    """

    def __init__(self, config: DictConfig, run: RunDir, console: Console) -> None:
        self.config, self.run = config, run
        earlier = run_directory.rows_until(run.path, run.resume_step)
        self.began = time.monotonic() - (earlier[-1]["wall_s"] if earlier else 0.0)
        self.terminal = Terminal(rounds=config.rounds, console=console)
        self.rows = Jsonl(run.path / "metrics.jsonl", earlier=earlier)
        self.sinks = [self.rows, self.terminal, *wandb_of(config, run.path)]
        self.shares = Shares(range(config.workers))
        self.saved: dict[int, set[int]] = {}
        self.here = set(range(config.workers))
        self.ready: set[int] = set()
        self.died: set[int] = set()
        self.outvoted = ""
        self.done_s: float | None = None
        self.went_back = False

    def work(self, team: WorkerPool) -> None:
        """Start the workers, follow their events, and always stop and join them at the end."""
        checkpoint.discard_after(self.run.path, self.run.resume_step)
        try:
            team.start()
            self.follow(team)
        finally:
            team.stop()
            team.join()
            for sink in self.sinks:
                sink.close()

    def follow(self, team: WorkerPool) -> None:
        """Process events until every worker has left. Raises the error of the first worker that fails."""
        while self.here:
            for event in self.next_events(team):
                self.take(event)
        if self.outvoted and self.done_s is None:
            raise WorkerCrashed(self.outvoted)

    def next_events(self, team: WorkerPool) -> list[Event]:
        """Return the next event. Once a worker is done, others not done within round_timeout_s are reported as dead."""
        if self.done_s is None:
            return [team.events.get()]
        try:
            left_s = self.done_s + self.config.round_timeout_s - time.monotonic()
            return [team.events.get(timeout=max(0.0, left_s))]
        except queue.Empty:
            return [died(worker, "did not finish with the others") for worker in sorted(self.here)]

    def take(self, event: Event) -> None:
        """Account for one event of a worker."""
        worker, kind = event["worker"], event["event"]
        if kind == "back":
            self.go_back(event["step"])
            return
        if kind == "error" and event["kind"] == "alone" and self.done_s is not None:
            event, kind = died(worker, event["text"]), "died"
        if kind == "error" and event["kind"] == "outvoted":  # the other workers of this machine write the model
            self.outvoted = event["text"]
            self.died.add(worker)
            event, kind = died(worker, event["text"]), "left"
        self.write(event)
        if kind == "error":
            raise (UserError if event["kind"] == "user" else WorkerCrashed)(event["text"])
        if kind == "ready":
            self.ready.add(worker)
        elif kind == "done":
            self.done_s = time.monotonic()
        elif kind == "died":
            self.bury(event)
        elif kind == "saved":
            self.take_saved(event)
        elif kind == "address" and worker == 0 and event["addresses"] and not build.initial_peers(self.config):
            self.tell_address(event["addresses"])
        if kind in ("left", "died"):
            self.here.discard(worker)
        for row in self.shares.take(event):
            self.write(row)

    def go_back(self, step: int) -> None:
        """Drop the rows after `step`: the peers resume from an earlier checkpoint than this machine's newest."""
        if not self.went_back:
            self.went_back = True
            self.rows.begin(run_directory.rows_until(self.run.path, step))
            self.terminal.say(f"going back to inner step {step}, the newest checkpoint that all peers hold")

    def bury(self, event: Event) -> None:
        """Record that a worker died. Raises WorkerCrashed if the others cannot continue without it."""
        self.died.add(event["worker"])
        peers = self.config.exchange.get("peers", self.config.workers)
        waits_for_all = build.capabilities(self.config).waits_for_all
        least = peers if waits_for_all else self.config.exchange.get("min_peers") or min(2, peers)
        alive = peers - len(self.died)
        if len(self.ready) < self.config.workers:
            raise WorkerCrashed(f"{event['text']}; the run had not started")
        if alive < least and self.done_s is None:
            raise WorkerCrashed(
                f"{event['text']}; {alive} of {peers} peers cannot continue, at least {least} are needed"
            )

    def take_saved(self, event: Event) -> None:
        """Seal the checkpoint generation once every local worker has saved it. Its rows are written to disk first.

        Once a worker has died, its part is missing. Such generations cannot be resumed from and are dropped.
        """
        who = self.saved.setdefault(event["step"], set())
        who.add(event["worker"])
        if not who >= self.here:
            return
        del self.saved[event["step"]]
        if self.died:
            checkpoint.drop(self.run.path, event["step"])
        elif len(who) == self.config.workers:
            self.rows.sync()
            checkpoint.seal(self.run.path, event["step"])

    def tell_address(self, addresses: Sequence[str]) -> None:
        """Print how other machines join, if the run still needs peers or admits them at any time."""
        peers = self.config.exchange.peers
        if peers <= self.config.workers and not build.capabilities(self.config).replicated:
            return
        same = f"with the same options and exchange.peers={peers}"
        address = f"'exchange.initial_peers=[{addresses[0]}]'"
        if all("/127.0.0.1/" in address for address in addresses):
            self.terminal.say(f"others on this machine join {same} {address}")
            self.terminal.say("start with exchange.host=0.0.0.0 to let other machines join")
        else:
            self.terminal.say(f"others join {same} exchange.host=0.0.0.0 {address}")

    def write(self, row: Row) -> None:
        """Write one row to every sink."""
        row["wall_s"] = round(time.monotonic() - self.began, 3)
        for sink in self.sinks:
            sink.write(row)


def wandb_of(config: DictConfig, run_dir: Path) -> list[Any]:
    """Return the wandb sink in a list, which is empty if the configuration has none. Imports wandb only if needed."""
    if config.log.wandb is None:
        return []
    from outerloop.sinks.wandb import Wandb

    settings = OmegaConf.to_container(config, resolve=True)
    node = config.log.wandb
    return [
        Wandb(
            project=node.project,
            entity=node.entity,
            name=node.name or run_dir.name,
            run_dir=run_dir,
            settings=settings,  # type: ignore[arg-type]
        )
    ]


def hand_in(config: DictConfig, run_dir: Path) -> Row:
    """Write summary.json and loss.png from the rows of the run. Return the summary."""
    from outerloop.report.run_figure import draw_run
    from outerloop.report.summary import summarize

    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    ready = [row for row in rows if row["event"] == "ready"]
    summary = summarize(
        rows, recipe=config.recipe, workers=ready[-1]["size"], rounds=config.rounds, params=ready[-1]["params"]
    )
    draw_run(rows, summary, run_dir / "loss.png")
    checkpoint.write_atomically(run_dir / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
    return summary


def tell_results(summary: Row, run_dir: Path, console: Console) -> None:
    """Print the results of the run in six lines."""
    bits, ratio = summary["bits_per_param_per_round"], summary["ratio_to_fp32"]
    for line in (
        f"validation loss  {summary['val_loss_initial']:.3f} -> {summary['val_loss']:.3f} nats per token"
        f" after {summary['tokens'] / 1e6:.1f}M tokens in {summary['wall_s']:.0f} s",
        f"sent             {readable_bytes(summary['bytes_sent_per_worker'])} per worker,"
        f" {bits:.3f} bits per parameter and round" + (f": {ratio:.0f}x fewer than float32" if ratio > 1.5 else ""),
        f"utilization      {100 * summary['utilization']:.1f} %:"
        f" {summary['compute_s']:.1f} s of inner steps per worker, {summary['communication_s']:.1f} s of communication,"
        f" {summary['others_s']:.1f} s of waiting for others",
        f"model            {run_dir / 'hf'}",
        f"figure           {run_dir / 'loss.png'}",
        f"summary          {run_dir / 'summary.json'}",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if summary["workers_died"]:
        console.print(f"died             {summary['workers_died']} of this machine's workers", highlight=False)
