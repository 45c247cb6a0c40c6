"""Train any model with N virtual workers in one process, on one device, to compare recipes.

    for recipe in ("ddp", "diloco", "sparseloco"):
        print(outerloop.simulate(make_model, batches, loss, recipe=recipe, run_dir=f"runs/{recipe}"))

Workers are threads that take turns (exchange/inprocess.py), so runs on equal hardware are bit-for-bit reproducible.
"""

from __future__ import annotations

import json
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from torch import Tensor
from torch.nn import Module

from outerloop.config import budget, build, instantiate, load
from outerloop.config.option_mapping import refuse_options, to_overrides
from outerloop.exchange.inprocess import Hub
from outerloop.inner.events import Event
from outerloop.kernels.threads import set_threads
from outerloop.launcher import cpu_share
from outerloop.launcher.thread_pool import ComputeThread
from outerloop.launcher.validation_merge import ValidationMerge
from outerloop.report.summary import summarize
from outerloop.simulation.results import Results, Row
from outerloop.simulation.task import MakeOptimizer, Task
from outerloop.simulation.virtual_worker import VirtualWorker
from outerloop.sinks.console import format_bytes
from outerloop.sinks.jsonl import Jsonl
from outerloop.state.checkpoint import write_atomically
from outerloop.types import Stopped, UserError

UNUSED = ("batch", "micro_batch", "seq_len", "accumulate", "precision", "compile")
"""Options of the inner trainer that do not apply, because the functions `batches` and `loss` determine these values."""
REASONS = {
    "recipe": "pass recipe=",
    "rounds": "pass steps=",
    "steps": "pass steps=",
    "tokens": "pass steps=",
    "workers": "pass workers=",
    "seed": "pass seed=",
    "run_dir": "pass run_dir=",
    "model": "make_model creates the model",
    "data": "batches returns the data",
    "corpus": "batches returns the data",
    "assignment": "batches returns the data",
    "eval.sequences": "pass validation=",
    "init_from": "load the weights in make_model",
    "checkpoint": "a simulation saves no checkpoints",
    "samples": "a simulation has no tokenizer",
    "scores": "a simulation has no training text, from which the windows of a score are drawn",
    "exclude_accused": "the workers of a simulation accuse no peers",
    "keep_payload_rounds": "a simulation stores no payloads",
    "round_timeout_s": "rounds between threads do not time out",
    "max_failed_rounds": "rounds between threads do not fail",
    "island": "each worker is a single process",
    "log": "rows are in the results, and in run_dir",
    "watch": "run outerloop watch with the run_dir",
    **{f"inner.{name}": "batches and loss determine the inner step" for name in UNUSED},
}
"""Option of `outerloop train` -> why a simulation refuses it."""


def simulate(
    make_model: Callable[[], Module],
    batches: Callable[[int], Iterable[Any]],
    loss: Callable[[Module, Any], Tensor],
    *overrides: str,
    recipe: str = "sparseloco",
    workers: int = 8,
    steps: int = 1000,
    validation: Iterable[Any] | None = None,
    optimizer: MakeOptimizer | None = None,
    sync_every: int | None = None,
    options: Mapping[str, Any] | DictConfig | None = None,
    seed: int = 0,
    device: str = "auto",
    run_dir: str | Path | None = None,
    progress: bool = True,
) -> Results:
    """Train with virtual workers that take turns on one device, and return loss and traffic curves.

    To keep runs reproducible, draw random numbers with torch, which is seeded per worker, or with your own seeded
    generators.

    Args:
        make_model: function that returns the model. It is called once per worker, with the same seed, so that all
            workers start with equal weights.
        batches: function that takes a worker's index (0 .. workers - 1) and returns that worker's batches. Iteration
            restarts after the last batch. A batch is a tensor, or a tuple, list or dictionary of tensors, whose first
            dimension counts samples.
        loss: function (model, batch) -> mean loss over the batch, a scalar tensor.
        overrides: options as on the command line: "compress=int8", "eval.every=2" (rounds between evaluations).
        recipe: name of a recipe; "ddp" is data parallel training, the baseline.
        workers: number of workers.
        steps: number of inner steps per worker. The run ends with the last round that lands within these steps.
        validation: batches on which the global model is evaluated. None: the first batch of each worker is held out, so
            that no worker trains on it, unless a loader shuffles: then pass `validation`.
        optimizer: function that takes the list of parameters and returns the inner optimizer; its learning rate stays
            constant. None: the recipe's optimizer, with inner.lr, warm-up, decay and gradient clipping.
        sync_every: H, the number of inner steps per round; sets schedule.sync_every.
        options: more options, as a mapping: {"inner.lr": 1e-3, "schedule.sync_every": 30}.
        seed: seed of the initial weights and of all random numbers of the workers and the recipe.
        device: "auto", "cpu", "cuda" or "mps".
        run_dir: new folder for config.yaml, metrics.jsonl and summary.json, which `outerloop report` reads.
        progress: whether to print a line for each evaluation.

    Raises:
        UserError: if an argument or option is invalid, or if the recipe cannot be simulated.
    """
    for name, function in (("make_model", make_model), ("batches", batches), ("loss", loss)):
        if not callable(function):
            raise UserError(
                f"{name} must be a function, but is of type {type(function).__name__}: see outerloop.simulate"
            )
    held_out = None if validation is None else list(validation)
    if held_out == []:
        raise UserError(
            "validation= has no batches: pass at least one, or omit it to hold out the first batch of each worker"
        )
    task = Task(make_model, batches, loss, held_out, optimizer)
    own = {"recipe": recipe, "workers": workers, "seed": seed, "inner.device": device}
    typed = [
        *overrides,
        *to_overrides(options),
        *to_overrides({} if sync_every is None else {"schedule.sync_every": sync_every}),
    ]
    refuse_options(typed, REASONS, "a simulation")
    settings = simulation_settings(to_overrides(own), typed)
    settings.rounds = rounds_within(settings, steps)
    describe_task(settings, task)
    recorder = Recorder(settings, None if run_dir is None else Path(run_dir), progress=progress)
    with closing(recorder):
        models = run_workers(settings, task, recorder.record)
        return recorder.results(models[0])


def simulation_settings(own: Sequence[str], typed: Sequence[str]) -> DictConfig:
    """Return the validated settings, with the recipe's exchange between processes replaced by one between threads.

    Raises UserError if the user selected an exchange between processes.
    """
    settings = load.load([*own, *typed])
    if settings.workers_as == "threads":
        return settings
    kind = "inprocess" if build.capabilities(settings).agrees else "inprocess_gossip"
    settings = load.load([*own, f"exchange={kind}", *typed])
    if settings.workers_as != "threads":
        raise UserError(
            f"{settings.exchange._target_} connects processes, but the workers of a simulation are threads: leave out"
            f" exchange=, or set exchange={kind}"
        )
    return settings


def rounds_within(settings: DictConfig, steps: int) -> int:
    """Return how many rounds land (are applied) within `steps` inner steps.

    Raises UserError if no round lands, or if the schedule does not fix the number of steps per round.
    """
    if budget.fixed_h(settings) is None:
        raise UserError("a simulation needs a schedule with a fixed H, to end within steps=: set schedule=every_h")
    schedule = instantiate.make(settings.schedule)
    rounds = bisect_right(range(1, steps + 1), steps, key=schedule.inner_steps)
    if rounds == 0:
        raise UserError(
            f"steps={steps} is less than the {schedule.inner_steps(1)} inner steps until the first round lands: set a"
            " larger steps=, or a smaller sync_every="
        )
    return rounds


def describe_task(settings: DictConfig, task: Task) -> None:
    """Replace the settings of model and data with the names of the task's functions, for config.yaml."""
    names = task.names()
    with open_dict(settings):
        settings.model = {"_target_": names["model"]}
        settings.data = {"_target_": names["batches"], "loss": names["loss"]}
        for name in UNUSED:
            settings.inner.pop(name, None)


def run_workers(settings: DictConfig, task: Task, emit: Callable[[Event], None]) -> list[Module]:
    """Run all workers as threads, and return their models, sorted by rank.

    Raises the error of the first worker that fails.
    """
    hub, models, errors = Hub(settings.workers), dict[int, Module](), list[BaseException]()

    def work(rank: int) -> None:
        set_threads(1)
        try:
            with closing(instantiate.make(settings.exchange, hub=hub, rank=rank)) as exchange:
                exchange.join()
                worker = VirtualWorker(task, settings, exchange, emit=emit, compute=compute)
                worker.run()
                models[rank] = worker.model
        except Stopped:
            pass
        except BaseException as error:
            errors.append(error)
            hub.stop("another worker failed")

    with closing(ComputeThread(settings.threads or cpu_share.threads_per_process(1))) as compute:
        threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(settings.workers)]
        try:
            for thread in threads:
                thread.start()
        finally:
            wait_for(threads, hub)
    if errors:
        raise errors[0]
    return [models[rank] for rank in sorted(models)]


def wait_for(threads: Sequence[threading.Thread], hub: Hub) -> None:
    """Wait until all threads have ended. If the wait is interrupted, stop the workers and re-raise the exception."""
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        hub.stop("the simulation was interrupted")
        for thread in threads:
            thread.join()
        raise


class Recorder:
    """Collects the rows of a simulation, writes them to its run directory, and prints each evaluation.

    Files are written from the first round on, so that a simulation that fails earlier can be repeated.

    Args:
        settings: settings of the run.
        run_dir: folder to create and write to; None: write no files.
        progress: whether to print each evaluation.

    Raises:
        UserError: if `run_dir` exists and is not empty.
    """

    def __init__(self, settings: DictConfig, run_dir: Path | None, *, progress: bool) -> None:
        self.settings, self.run_dir, self.progress = settings, run_dir, progress
        self.rows: list[Row] = []
        self.merge, self.start_s = ValidationMerge(range(settings.workers)), time.monotonic()
        self.file: Jsonl | None = None
        if run_dir is not None:
            if run_dir.exists() and not (run_dir.is_dir() and not any(run_dir.iterdir())):
                raise UserError(f"run_dir={run_dir} exists and is not empty: set run_dir= to a new folder")
            run_dir.mkdir(parents=True, exist_ok=True)

    def record(self, event: Event) -> None:
        """Add the row of an event and, if it completes an evaluation, a "validation" row.

        Workers take turns, so calls never overlap.
        """
        for row in (event, *self.merge.add(event)):
            row["wall_s"] = round(time.monotonic() - self.start_s, 3)
            self.rows.append(row)
            self.store(row)
            if self.progress and row["event"] == "validation":
                self.print_validation(row)

    def store(self, row: Row) -> None:
        """Write a row to the run directory, if any. The first round creates the files, with all rows so far."""
        if self.file:
            self.file.write(row)
        elif self.run_dir is not None and row["event"] == "round":
            write_atomically(self.run_dir / "config.yaml", OmegaConf.to_yaml(self.settings, resolve=True).encode())
            self.file = Jsonl(self.run_dir / "metrics.jsonl", earlier=self.rows)

    def print_validation(self, row: Row) -> None:
        """Print one line for an evaluation."""
        sent = max((other["bytes_sent"] for other in self.rows if other["event"] == "round"), default=0)
        place = f"{self.settings.recipe}  round {row['round']}/{self.settings.rounds}  step {row['step']}"
        print(f"{place}  validation loss {row['val_loss']:.4f}  sent {format_bytes(sent)} per worker", flush=True)

    def results(self, model: Module) -> Results:
        """Return the results of a finished run, after writing summary.json."""
        ready = next(row for row in self.rows if row["event"] == "ready")
        summary = summarize(
            self.rows,
            recipe=self.settings.recipe,
            workers=self.settings.workers,
            rounds=self.settings.rounds,
            params=ready["params"],
        )
        if self.file:
            self.file.sync()
        if self.run_dir is not None:
            write_atomically(self.run_dir / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
        delay = int(self.settings.schedule.get("delay") or 0)
        return Results(summary, self.rows, model, self.run_dir, delay)

    def close(self) -> None:
        """Close metrics.jsonl, if it is being written."""
        if self.file:
            self.file.close()
