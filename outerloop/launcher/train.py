"""`outerloop train`: bring the data to this machine, check the settings, train, and write the results.

If the run is already finished, only its results are printed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from outerloop.config import part_checks, run_directory
from outerloop.config.manifest.describe_run import add_manifest
from outerloop.config.options import typed_options
from outerloop.config.run_directory import RunDir
from outerloop.core.contributor_rows import from_maps
from outerloop.launcher import micro_batch, shared_data
from outerloop.launcher.process_pool import ProcessWorkerPool, worker_pythonpath
from outerloop.launcher.run_info import make_sinks, run_info, run_name
from outerloop.launcher.supervisor import Row, Supervisor
from outerloop.launcher.thread_pool import ThreadWorkerPool
from outerloop.launcher.worker_pool import WorkerPool
from outerloop.output import lenient_stdout
from outerloop.report.contributors import summary_line
from outerloop.report.model_card import write_model_card
from outerloop.report.runs import read_results
from outerloop.sinks.console import format_bytes, format_tokens
from outerloop.sinks.sink import Sinks, print_line
from outerloop.state import checkpoint
from outerloop.types import UserError
from outerloop.watch.live_page import live_page, refuse_without_packages

MakePool = Callable[[DictConfig, Path, int | None], WorkerPool]
"""(settings, run directory, inner step to resume from) -> a worker pool that is not started yet."""
ShowAddress = Callable[[Sequence[str]], None]
POOLS: dict[str, MakePool] = {"threads": ThreadWorkerPool, "processes": ProcessWorkerPool}


def train(
    config: DictConfig,
    make_pool: MakePool | None = None,
    *,
    overrides: Sequence[str] = (),
    show_address: ShowAddress | None = None,
) -> Row:
    """Train one run to its end and return its summary. If the run is already finished, only return its summary.

    `make_pool` creates the worker pool. By default, workers are threads or processes on this machine, depending on the
    exchange. `overrides`: the options as typed on the command line, which are stored in the run directory.
    `show_address`: called with this machine's addresses. The default prints what to type on other machines. Lines that
    standard output cannot take are dropped, and training continues.

    Raises UserError if the settings are invalid or a worker raises UserError. Raises WorkerCrashed on its other errors.
    """
    refuse_missing_packages()
    if config.watch is not None:
        refuse_without_packages()
    console, sinks = Console(file=lenient_stdout()), make_sinks(config)
    run = run_directory.finished_run(config)
    if run is None:
        prepare(config, console)
        run = run_directory.open_run(config)
    with closing(run):
        if not run.finished:
            typed_options.write(run.path, overrides)
        return train_in(config, run, console, sinks, make_pool or POOLS[config.workers_as], show_address)


def prepare(config: DictConfig, console: Console) -> None:
    """Bring the data to this machine, check the settings, and complete them.

    Raises UserError if the data cannot be published or downloaded, or if the settings are invalid.
    """
    shared_data.prepare(config, partial(print_line, console))
    part_checks.limit_payloads(config, part_checks.check_parts(config))
    add_manifest(config)
    if config.inner.get("micro_batch") == "auto":
        config.inner.micro_batch = choose_micro_batch(config, console)


def choose_micro_batch(config: DictConfig, console: Console) -> int:
    """Return the number of sequences per pass that fit in this machine's memory, and print it.

    A resumed run keeps the number of its first start, because any other number would change the last bits of gradients.
    """
    chosen = micro_batch.saved(config) or micro_batch.choose(config)
    line = f"{chosen} of {config.inner.batch} sequences per forward and backward pass (inner.micro_batch=auto)"
    print_line(console, line)
    return chosen


def refuse_missing_packages() -> None:
    """Raise UserError if a package that is needed to write the model or the figure at the end is missing."""
    for package in ("transformers", "tokenizers", "matplotlib"):
        if find_spec(package) is None:
            raise UserError(f"{package} is not installed: run pip install 'outerloop-train[train]'")


def train_in(
    config: DictConfig,
    run: RunDir,
    console: Console,
    sinks: Sinks,
    make_pool: MakePool,
    show_address: ShowAddress | None = None,
) -> Row:
    """Train in a run directory that is already locked. Return the summary."""
    for note in run.notes:
        print_line(console, note)
    if run.finished:
        print_line(console, f"{run.path} is a finished run: nothing to do. Set another run_dir= to train again.")
        summary = read_results(run.path) or {}
        print_results(summary, run.path, console, take_turns=config.workers_as == "threads")
        return summary
    if run.resume_step is not None:
        print_line(console, f"resuming after inner step {run.resume_step}")
    workers = f"{config.workers} worker{'s' * (config.workers != 1)}"
    print_line(console, f"{config.recipe}, {workers}, results in {run.path}")
    sinks.start(run_info(config, run, console))
    with closing(sinks), ExitStack() as stack:
        if config.watch is not None:
            say = partial(print_line, console)
            stack.enter_context(live_page(run.path, config.watch, say, pythonpath=worker_pythonpath()))
        try:
            supervisor = Supervisor(config, run, console, sinks, show_address=show_address)
            supervisor.supervise(make_pool(config, run.path, run.resume_step))
        except KeyboardInterrupt:
            print_line(console, resume_hint(run.path))
            raise
        summary = write_summary(config, run.path)
        sinks.write({"event": "summary"} | summary)
    print_results(summary, run.path, console, take_turns=config.workers_as == "threads")
    return summary


def resume_hint(run_dir: Path) -> str:
    """Return a line that states how to resume an interrupted run, or its sweep, and from which step."""
    command, steps = resume_command(run_dir), checkpoint.sealed(run_dir)
    if not steps:
        return f"no checkpoint was saved: {command} starts from the beginning"
    return f"{command} resumes from the last checkpoint, after inner step {steps[0]}"


def resume_command(run_dir: Path) -> str:
    """Return the command that resumes a run or, in a sweep, the sweep.

    A sampler without a seed would draw other values if the sweep were repeated, so only its run can be resumed.
    """
    if not HydraConfig.initialized() or HydraConfig.get().mode != RunMode.MULTIRUN:
        return f"the same command with run_dir={run_dir}"
    sampler = HydraConfig.get().sweeper.get("sampler")
    if sampler is not None and sampler.get("seed") is None:
        return f"outerloop train --config {run_dir} run_dir={run_dir}"
    return f"the same command with hydra.sweep.dir={run_dir.parent}"


def write_summary(config: DictConfig, run_dir: Path) -> Row:
    """Write summary.json, loss.png and the model card from the run's metrics.jsonl. Return the summary."""
    from outerloop.report.run_figure import draw_run
    from outerloop.report.summary import summarize

    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    ready = [row for row in rows if row["event"] == "ready"]
    summary = summarize(
        rows, recipe=config.recipe, workers=ready[-1]["size"], rounds=config.rounds, params=ready[-1]["params"]
    )
    draw_run(rows, summary, run_dir / "loss.png")
    if (run_dir / run_directory.MODEL).exists():
        settings = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
        write_model_card(run_dir / run_directory.MODEL, summary, settings, title=run_name(config.recipe, run_dir))
    checkpoint.write_atomically(run_dir / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
    return summary


def print_results(summary: Row, run_dir: Path, console: Console, *, take_turns: bool) -> None:
    """Print the results of the run, one per line. Lines whose fields the summary lacks are left out.

    take_turns: whether workers take turns in one process, so that their waiting and their utilization mean nothing.
    """
    for line in (loss_line, sent_line, partial(spent_line, take_turns=take_turns)):
        with suppress(KeyError):
            print_line(console, line(summary))
    for place in (
        f"model            {run_dir / run_directory.MODEL}",
        f"figure           {run_dir / 'loss.png'}",
        f"summary          {run_dir / 'summary.json'}",
    ):
        print_line(console, place)
    rows = from_maps(summary.get("contributors"))
    if len(rows) > len(summary.get("slow_hash", rows)):  # peers of other machines took part
        print_line(console, f"contributors     {summary_line(rows)}")
    if summary.get("workers_died"):
        print_line(console, f"died             workers {summary['workers_died']} of this machine")


def loss_line(summary: Row) -> str:
    """Return the validation loss before and after the run, with the tokens of this machine and the duration."""
    here = len(summary["slow_hash"]) + len(summary["workers_died"])
    of_machine = " of this machine" if summary["workers"] > here else ""
    return (
        f"validation loss  {summary['val_loss_initial']:.3f} -> {summary['val_loss']:.3f} nats per token"
        f" after {format_tokens(summary['tokens'])} tokens{of_machine} in {summary['wall_s']:.0f} s"
    )


def sent_line(summary: Row) -> str:
    """Return what a worker sent, and how much less this is than float32."""
    bits, ratio = summary["bits_per_param_per_round"], summary["ratio_to_fp32"]
    fewer = f": {ratio:.0f}x fewer than float32" if ratio > 1.5 else ""
    state = summary.get("state_bytes_sent_per_worker", 0)
    of_state = f" (of which {format_bytes(state)}: the state, for newcomers)" if state else ""
    sent = format_bytes(summary["bytes_sent_per_worker"])
    return f"sent             {sent} per worker{of_state}, {bits:.3f} bits per parameter and round{fewer}"


def spent_line(summary: Row, *, take_turns: bool) -> str:
    """Return how a worker spent its time, without the waiting if workers take turns."""
    spent = (
        f"{summary['compute_s']:.1f} s of inner steps per worker, {summary['communication_s']:.1f} s of communication"
    )
    if take_turns:
        return f"time             {spent}"
    waited = f"{summary['others_s']:.1f} s of waiting for others"
    return f"utilization      {100 * summary['utilization']:.1f} %: {spent}, {waited}"
