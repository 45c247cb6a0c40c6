"""Measure the cost of the outer loop for N virtual workers on one device, relative to the inner steps alone.

    .venv/bin/python scripts/bench_loop.py [--workers 8] [--rounds 4] [--repeats 5] [--json FILE] [option=value ...]

Two cases, bare and loop, are measured in turn, --repeats times. The result is the median of the ratios loop / bare.
Bare: one model and one optimizer take workers x rounds x H inner steps in sequence (H is the number of inner steps per
round). Loop: each worker is a thread that takes rounds x H inner steps and runs the rounds; one worker computes at a
time. In both cases, the same thread does all tensor work. Options are those of `outerloop train`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from pathlib import Path

import torch
from omegaconf import DictConfig
from result_rows import show

from outerloop.config import build, instantiate, load
from outerloop.exchange.inprocess import Hub
from outerloop.inner.trainer import Trainer
from outerloop.kernels.threads import set_threads
from outerloop.launcher.thread_pool import ComputeThread


def trainers(settings: DictConfig) -> tuple[list[Trainer], ComputeThread]:
    """Return one trainer per worker, connected by a shared hub, and the thread that does all tensor work."""
    compute = ComputeThread(settings.threads or torch.get_num_threads())
    torch.set_num_threads(1)
    corpus, hub = instantiate.make(settings.data), Hub(settings.workers)
    team = [
        build.make_trainer(
            settings, corpus, instantiate.make(settings.exchange, hub=hub, rank=rank), rank, compute=compute
        )
        for rank in range(hub.size)
    ]
    return team, compute


def bare_s(trainer: Trainer, steps: int) -> float:
    """Return the seconds of `steps` inner steps without the outer loop: batch, forward, backward, clip, optimizer."""
    began = time.perf_counter()
    for _ in range(steps):
        for p in trainer.params:
            p.grad = None
        trainer.backward(trainer.stream.next())
        trainer.update()
    return time.perf_counter() - began


def loop_s(team: list[Trainer], steps: int) -> float:
    """Return the seconds until every worker has taken `steps` inner steps, with the outer loop."""
    began = time.perf_counter()
    train(team, steps)
    return time.perf_counter() - began


def train(team: list[Trainer], steps: int) -> None:
    """Take `steps` inner steps per worker, in threads that take turns."""

    def live(trainer: Trainer) -> None:
        set_threads(1)
        exchange = trainer.outer.exchange
        exchange.join()
        for _ in range(steps):
            trainer.step()
        exchange.close()

    threads = [threading.Thread(target=live, args=(trainer,)) for trainer in team]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    """Measure both cases, and print one row of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("options", nargs="*")
    args = parser.parse_intermixed_args()
    settings = load.load(["exchange=inprocess", "rounds=100000", f"workers={args.workers}", *args.options])
    team, compute = trainers(settings)
    steps = args.rounds * settings.schedule.sync_every
    train(team, settings.schedule.sync_every)  # warm-up: compile the kernels in the measured thread
    compute(bare_s, team[0], 1)
    rows = [(compute(bare_s, team[0], steps * args.workers), loop_s(team, steps)) for _ in range(args.repeats)]
    bare, loop = (statistics.median(side) for side in zip(*rows, strict=True))
    row = {
        "recipe": settings.recipe,
        "workers": args.workers,
        "sync_every": settings.schedule.sync_every,
        "params": sum(p.numel() for p in team[0].params),
        "bare_s": bare,
        "loop_s": loop,
        "ratio": statistics.median(b / a for a, b in rows),
    }
    show(row)
    if args.json:
        Path(args.json).write_text(json.dumps([row], indent=2) + "\n")


if __name__ == "__main__":
    main()
