"""`outerloop train` in a process started by torchrun. Each process is one worker, or one rank of a worker.

    torchrun --nproc-per-node 4 -m outerloop train recipe=sparseloco exchange=distributed run_dir=runs/mine
    torchrun --nproc-per-node 4 -m outerloop train exchange=distributed island=sharded island.ranks=2 run_dir=runs/mine

Rank 0 locks the run directory, supervises all workers and writes the results. The other ranks train, and write their
checkpoints to the same folder. A rank that cannot continue sends the reason to rank 0, which ends the run. torchrun
then ends the other ranks, as it does when a rank is lost. If configured to restart, it starts all ranks again, and they
resume from the last checkpoint.

torchrun forwards SIGTERM and SIGINT to all ranks, and kills those that still run after 30 s. Within this time, they
train to a common inner step and save.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import distributed as dist

from outerloop.config import load
from outerloop.config.island_checks import ranks_per_island, refuse_island
from outerloop.config.options.resumed_settings import comparable
from outerloop.config.options.setting_differences import refuse_different
from outerloop.config.rank_layout import group_timeout, island_and_rank, local_world_size, process_group_backend
from outerloop.exchange.distributed import Distributed
from outerloop.inner.stop_point import StopPoint
from outerloop.launcher import cpu_share
from outerloop.launcher.interrupts import handle_interrupts
from outerloop.launcher.torchrun.pool import TorchrunPool, run_rank
from outerloop.launcher.torchrun.stop import send_event
from outerloop.launcher.worker_pool import run_to_end
from outerloop.launcher.worker_process import leave_on_signals
from outerloop.types import RoundFailed, Stopped, UserError

ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
STOP_REQUEST_S = 10
"""Seconds after SIGTERM in which rank 0 may request a checkpoint."""
LEAVE_S = 20
"""Seconds that a failed worker waits before it exits, so that rank 0 can report the reason first."""


def train(overrides: Sequence[str]) -> int:
    """Run one worker and, on rank 0, the supervisor. Return the exit code.

    Raises UserError if the settings are invalid or a worker raises UserError. Raises WorkerCrashed on its other errors.
    """
    check_environment(overrides)
    settings = load_settings(overrides, processes=int(os.environ["WORLD_SIZE"]))
    torch.set_num_threads(settings.threads or cpu_share.core_share(local_world_size()))
    store, rank, size = next(dist.rendezvous("env://"))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(f"attempt {attempt}", store)  # torchrun may keep the store and its content after a restart
    timeout = group_timeout(settings)
    dist.init_process_group(process_group_backend(settings), store=store, rank=rank, world_size=size, timeout=timeout)
    world = Distributed(timeout_s=settings.round_timeout_s)
    events = dist.PrefixStore("events", store)
    code = run_first_rank(settings, world, events, overrides) if rank == 0 else run_other_rank(settings, world, events)
    if code == 0:
        dist.destroy_process_group()  # its threads must end before the interpreter does
    return code


def load_settings(overrides: Sequence[str], *, processes: int) -> DictConfig:
    """Return the settings, with the processes divided into islands. Raises UserError if the settings are invalid."""
    settings = load.load([*overrides, f"workers={processes}"])
    if settings.corpus.share is not None:
        raise UserError(
            "corpus.share does not apply to processes of torchrun, which read the same files: leave it out, or run"
            " outerloop train without torchrun"
        )
    ranks = ranks_per_island(settings, processes)
    refuse_island(settings, ranks)
    return load.load([*overrides, f"workers={processes // ranks}", f"island.ranks={ranks}"])


def check_environment(overrides: Sequence[str]) -> None:
    """Check that torchrun started this process, and that no option contradicts torchrun. Raises UserError if not."""
    for override in overrides:
        if override.startswith("workers="):
            raise UserError(
                f"{override} is not allowed, because torchrun sets the number of workers: omit it, and run"
                " torchrun --nproc-per-node N"
            )
    if missing := [name for name in ENVIRONMENT if name not in os.environ]:
        raise UserError(
            f"this run needs processes started by torchrun, but the environment variable {missing[0]} is not set:"
            f" run torchrun --nproc-per-node 4 -m outerloop train {' '.join(overrides)}"
        )


def run_first_rank(settings: DictConfig, world: Distributed, events: dist.Store, overrides: Sequence[str]) -> int:
    """Run rank 0: check that all ranks have the same settings, then supervise the run. Return the exit code."""
    from outerloop.launcher.train import train as run

    handle_interrupts()
    own = rank_settings(settings)
    for rank, theirs in enumerate(exchange_values(settings, world, own)):
        refuse_different(own, theirs, f"rank {rank}")
    started: list[Path] = []

    def make_pool(settings: DictConfig, run_dir: Path, resume_step: int | None) -> TorchrunPool:
        started.append(run_dir)
        exchange_values(settings, world, [str(run_dir.absolute()), resume_step])
        return TorchrunPool(settings, run_dir, resume_step, store=events)

    run(settings, make_pool, overrides=overrides)
    if not started:  # the run is already finished: the other ranks have nothing to do
        exchange_values(settings, world, None)
    world.close()
    return 0


def run_other_rank(settings: DictConfig, world: Distributed, events: dist.Store) -> int:
    """Run a rank other than 0. Return the exit code.

    If its worker fails, wait before returning, so that rank 0 can report the reason first.
    """
    stop_point = StopPoint()
    leave_on_signals(stop_point, request_s=STOP_REQUEST_S)
    signal.signal(signal.SIGINT, signal.getsignal(signal.SIGTERM))
    try:
        if train_rank(settings, world, events, stop_point):
            world.close()
            return 0
        time.sleep(LEAVE_S)
    except Stopped:
        world.abort()
    return 1


def train_rank(settings: DictConfig, world: Distributed, events: dist.Store, stop_point: StopPoint) -> bool:
    """Train in the run directory and from the inner step that rank 0 sends. Return whether the worker finished."""
    try:
        exchange_values(settings, world, rank_settings(settings))
        run, *_ = exchange_values(settings, world, None)
    except RoundFailed:  # rank 0 has ended, and has reported the reason
        return False
    if run is None:
        return True
    run_dir, resume_step = run
    emit = partial(send_event, events)
    run_own_worker = partial(
        run_rank, settings, Path(run_dir), resume_step, store=events, emit=emit, stop_point=stop_point
    )
    island, rank_in_island = island_and_rank(world.rank, size=world.size, workers=settings.workers)
    event = run_to_end(island, run_own_worker)
    if rank_in_island == 0 or event["event"] == "error":
        send_event(events, event)
    return event["event"] == "left"


def exchange_values(settings: DictConfig, world: Distributed, own: Any) -> list[Any]:
    """All-gather a JSON value: send `own`, and return the values of all ranks in rank order.

    Raises RoundFailed if a rank is lost or too late.
    """
    contributions = world.all_gather(json.dumps(own).encode(), 0, settings.round_timeout_s)
    return [json.loads(bytes(contribution.blob)) for contribution in contributions]


def rank_settings(settings: DictConfig) -> dict[str, Any]:
    """Return the settings that must be equal on all ranks: those that determine training, except `data`.

    The ranks of an island communicate in every pass, so their micro-batches must be equal.
    """
    shared = {key: value for key, value in comparable(settings).items() if key.split(".")[0] != "data"}
    return shared | {"island.ranks": settings.island.ranks, "inner.micro_batch": settings.inner.get("micro_batch")}
