"""Tune and train recipes for the table of loss gaps to data-parallel training with the same inner optimizer.

    .venv/bin/python scripts/bench_table.py --runs FOLDER --json FILE [--cases ddp_muon,outerloop] [--steps 3000]
        [--sync-every 15,30,100] [--workers 4,8] [--seeds 0,1,2,3] [--sequences 16] [--jobs 2] [--no-tuning
        [--lr 4e-3] [--momentum 0.85]] [--again] [option=value ...]

Each case is tuned at the first given H (inner steps per round, --sync-every), number of workers and seed, with as many
steps as in the table. First, the learning rates of its grid are tried; while the best one is at an end of the grid, the
grid is extended. If the case uses Muon, Muon's momenta are tried next, and then, with the best momentum, 2/3 and 3/2 of
the learning rate. The weight decays follow. If the case has an outer optimizer to tune, its pairs of outer learning
rate and momentum are tried last, and then, with the best pair, 2/3 and 3/2 of the inner learning rate. Finally, all
combinations of H, number of workers and seed are trained with the best values. A seed determines the initial weights
and the sample streams, so rows with the same seed and number of workers are paired. All workers together process
--sequences sequences per step, which must be a multiple of each number of workers. Data-parallel training is run as one
worker that trains on the whole batch. It has the same initial weights as the other rows, but draws its samples in
another order.

With --no-tuning, every case is trained with the first value of each grid, or with --lr and --momentum instead.

FILE holds one record per run; the same command resumes an interrupted benchmark. A record contains the loss of the slow
weights, and that of the mean of the fast weights just before the last round landed (fast_mean.py). With --again, the
runs of the table whose records lack the second loss are trained again, except for data-parallel training.
scripts/show_table.py prints the table. A record also contains a hash of the text, which differs between Pythons with
data=stdlib. Exit code 2: FILE has a record with another text. Options are those of `outerloop train`.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import shutil
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench_recipes import chosen_from, numbers
from benchmark_records import check_divisible, check_options, read_records, write_records
from fast_mean import FastMean
from omegaconf import DictConfig
from seed_statistics import loss_or_inf
from show_table import ALONE, EVERY_STEP, FAST_MEAN, TUNED
from table_cases import CASES

from outerloop.config import load
from outerloop.config.instantiate import make
from outerloop.kernels.arithmetic_platform import described
from outerloop.launcher.thread_pool import ThreadWorkerPool
from outerloop.launcher.train import train

Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One run of the benchmark. Its fields are the first fields of its record.

    outer_lr, momentum: settings of the outer optimizer; None if it is not tuned.
    inner_momentum: momentum of Muon; None for AdamW.
    weight_decay: of the inner optimizer.
    """

    case: str
    steps: int
    sync_every: int
    workers: int
    seed: int
    lr: float
    outer_lr: float | None = None
    momentum: float | None = None
    inner_momentum: float | None = None
    weight_decay: float = 0.1


def train_one(run: Run, folder: Path, sequences: int, options: Sequence[str]) -> Row:
    """Train one run in a new folder, which is removed afterwards. Return its record."""
    place = folder / "-".join(f"{value}" for value in asdict(run).values())
    overrides = [
        *CASES[run.case].overrides,
        *("exchange=inprocess", f"run_dir={place}", "checkpoint.every=0", "eval.every=0"),
        *(f"steps={run.steps}", f"workers={run.workers}", f"inner.batch={sequences // run.workers}"),
        *(f"seed={run.seed}", f"inner.lr={run.lr}"),
        f"inner.optimizer.weight_decay={run.weight_decay}",
        f"schedule.sync_every={run.steps if run.case in EVERY_STEP else run.sync_every}",
    ]
    if run.inner_momentum is not None:
        overrides.append(f"inner.optimizer.momentum={run.inner_momentum}")
    if run.outer_lr is not None:
        overrides += [f"method.optimizer.lr={run.outer_lr}", f"method.optimizer.momentum={run.momentum}"]
    config = load.load([*overrides, *options])
    fast_mean = FastMean(config)
    summary = train(config, partial(ThreadWorkerPool, before_first_step=fast_mean.attach))
    shutil.rmtree(place)
    bits = bits_per_round(run, summary)
    return asdict(run) | {
        "sequences": sequences,
        "options": sorted(options),
        "params": summary["params"],
        "tokens": summary["tokens"],
        "nats": summary["val_loss"],
        FAST_MEAN: fast_mean.nats,
        "bits_per_param_per_round": bits,
        "bits_per_param_per_step": bits / run.sync_every,
        "wall_s": summary["wall_s"],
        "platform": described(),
        "text": text_of(config),
    }


def text_of(config: DictConfig) -> str:
    """Return the first half of the hash of the text, 32 hexadecimal digits. data=stdlib differs between Pythons."""
    return str(make(config.data).fingerprint)[:32]


def bits_per_round(run: Run, summary: dict[str, Any]) -> float:
    """Return the bits per parameter that each worker sends per round; for data-parallel training, float32 gradients."""
    if run.case in EVERY_STEP:
        return 32.0
    return 0.0 if run.case in ALONE else float(summary["bits_per_param_per_round"])


class Bench:
    """A benchmark that trains the runs that are missing in FILE, and adds their records to it.

    pool: the processes that train, one run each.
    """

    def __init__(self, args: argparse.Namespace, pool: ProcessPoolExecutor) -> None:
        self.args, self.pool, self.lock = args, pool, threading.Lock()
        self.rows = read_records(args.json, list[Row]())
        text = {"text": text_of(load.load([*CASES[args.cases[0]].overrides, *args.options]))}
        for row in self.rows:
            check_options(row, text, what=f"{args.json}: a record of {row['case']}")

    def row(self, run: Run) -> Row | None:
        """Return the record of a run, or None if there is none yet."""
        wanted = asdict(run) | {"sequences": self.args.sequences, "options": sorted(self.args.options)}
        return next((row for row in self.rows if row.items() >= wanted.items()), None)

    def nats(self, run: Run) -> float:
        """Return the validation loss of a run that has a record, or infinity if it diverged."""
        row = self.row(run)
        assert row is not None
        return loss_or_inf(row["nats"])

    def train(self, runs: Iterable[Run], *, again: bool = False) -> None:
        """Train the runs that have no record yet, each in its own process.

        again: also train the runs whose record lacks the loss of the mean of the fast weights, and replace the record.
        """
        todo = [
            run
            for run in dict.fromkeys(runs)
            if (row := self.row(run)) is None or (again and row.get(FAST_MEAN) is None)
        ]
        shared = self.args.runs, self.args.sequences, self.args.options
        futures = {self.pool.submit(train_one, run, *shared): run for run in todo}
        errors = []
        for future in as_completed(futures):
            if future.cancelled():
                continue
            if error := future.exception():  # let running ones finish, and record them; start no others
                errors.append(error)
                for other in futures:
                    other.cancel()
                continue
            with self.lock:
                self.record(futures[future], future.result())
                write_records(self.args.json, self.rows)
        if errors:
            raise errors[0]

    def record(self, run: Run, row: Row) -> None:
        """Add the record of a run, or replace an earlier one. Print both losses if they differ."""
        old = self.row(run)
        if old is None:
            self.rows.append(row)
            return
        if old["nats"] != row["nats"]:
            print(f"{run.case}, seed {run.seed}: {old['nats']} nats before, {row['nats']} now", flush=True)
        self.rows[self.rows.index(old)] = row

    def first(self, case: str) -> Run:
        """Return the first tuning run of a case, with the first values of its grids."""
        args, values = self.args, CASES[case]
        sync_every = 1 if case in EVERY_STEP else args.sync_every[0]
        workers = 1 if case in ALONE else args.workers[0]
        momentum = (args.momentum or values.inner_momentum[0]) if values.inner_momentum else None
        place = case, args.steps, sync_every, workers, args.seeds[0]
        run = Run(*place, args.lr or values.lr[0], inner_momentum=momentum, weight_decay=values.weight_decay[0])
        return replace(run, outer_lr=values.outer[0][0], momentum=values.outer[0][1]) if values.outer else run

    def tune(self, case: str) -> Run:
        """Train the tuning runs of a case, and return the best one."""
        values = CASES[case]
        best = self.tune_lr(self.first(case), values.lr)
        if values.inner_momentum:
            best = self.best(replace(best, inner_momentum=momentum) for momentum in values.inner_momentum)
            best = self.tune_lr(best, (best.lr / 1.5, best.lr, best.lr * 1.5))
        best = self.best(replace(best, weight_decay=decay) for decay in values.weight_decay)
        if values.outer:
            best = self.best(replace(best, outer_lr=lr, momentum=momentum) for lr, momentum in values.outer)
            best = self.tune_lr(best, (best.lr / 1.5, best.lr, best.lr * 1.5))
        return best

    def tune_lr(self, first: Run, grid: Sequence[float]) -> Run:
        """Try the learning rates of a grid, which is extended while the best one is at an end. Return the best run."""
        rates = sorted(grid)
        while (best := self.best(replace(first, lr=lr) for lr in rates)).lr in (rates[0], rates[-1]):
            rates = sorted([*rates, best.lr / 1.5 if best.lr == rates[0] else best.lr * 1.5])
        return best

    def best(self, runs: Iterable[Run]) -> Run:
        """Train the runs, and return the one with the lowest loss."""
        runs = list(runs)
        self.train(runs)
        return min(runs, key=self.nats)

    def published(self, case: str, tuned: Run) -> list[Run]:
        """Return the runs of a case for the table, with the tuned values."""
        args = self.args
        every = [1] if case in EVERY_STEP else args.sync_every
        product = itertools.product(args.seeds, every, [1] if case in ALONE else args.workers)
        return [replace(tuned, sync_every=h, workers=workers, seed=seed) for seed, h, workers in product]

    def run(self, case: str) -> None:
        """Tune a case, print its best values, and train its runs in the table."""
        tuned = self.tune(case) if self.args.tuning else self.first(case)
        found = {key: value for key, value in asdict(tuned).items() if key in TUNED and value is not None}
        print(f"{case}: {', '.join(f'{key} {value:g}' for key, value in found.items())}", flush=True)
        self.train(self.published(case, tuned), again=self.args.again and case not in EVERY_STEP)


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--runs", type=Path, required=True, metavar="FOLDER")
    result.add_argument("--json", type=Path, required=True, metavar="FILE")
    cases = f"comma-separated list of {', '.join(CASES)}"
    result.add_argument("--cases", type=chosen_from(CASES), default=list(CASES), help=cases)
    result.add_argument("--steps", type=int, default=3000, help="inner steps per worker")
    result.add_argument("--sync-every", type=numbers, default=[15, 30, 100])
    result.add_argument("--workers", type=numbers, default=[4, 8])
    result.add_argument("--seeds", type=numbers, default=[0, 1, 2, 3])
    result.add_argument("--sequences", type=int, default=16, help="sequences per inner step, over all workers")
    result.add_argument("--no-tuning", dest="tuning", action="store_false", help="use the first value of each grid")
    result.add_argument(
        "--lr", type=float, help="with --no-tuning: inner learning rate instead of the first of the grid"
    )
    result.add_argument("--momentum", type=float, help="with --no-tuning: momentum of Muon, in the same way")
    result.add_argument(
        "--again", action="store_true", help="train runs of the table again whose records lack the second loss"
    )
    result.add_argument("--jobs", type=int, default=1)
    result.add_argument("options", nargs="*")
    return result


def main() -> None:
    """Tune and train all cases, in one pool of processes."""
    args = parser().parse_intermixed_args()
    for workers in args.workers if set(args.cases) - set(ALONE) else ():
        check_divisible(args.sequences, workers, what="--sequences", by="--workers")
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(args.jobs, mp_context=context, max_tasks_per_child=1) as pool,
        ThreadPoolExecutor(len(args.cases)) as cases,
    ):
        list(cases.map(Bench(args, pool).run, args.cases))


if __name__ == "__main__":
    main()
