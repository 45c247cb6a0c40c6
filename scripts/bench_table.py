"""Tune and train recipes for the table of loss gaps to data-parallel training with the same inner optimizer.

    .venv/bin/python scripts/bench_table.py --runs FOLDER --json FILE [--cases ddp_muon,outerloop] [--steps 3000]
        [--sync-every 15,30,100] [--workers 4,8] [--seeds 0,1,2,3] [--sequences 16] [--jobs 2] [option=value ...]

Each case is tuned at the first given H (inner steps per round, --sync-every), number of workers and seed, with as many
steps as in the table. First, the learning rates of its grid are tried; while the best one is at an end of the grid, the
grid is extended. Then, if the case has an outer optimizer to tune, its pairs of outer learning rate and momentum are
tried. Finally, all combinations of H, number of workers and seed are trained with the best values. A seed determines
the initial weights and the sample streams, so rows with the same seed and number of workers are paired. All workers
together process --sequences sequences per step.

FILE holds one record per run; the same command resumes an interrupted benchmark. scripts/show_table.py prints the
table. Options are those of `outerloop train`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench_recipes import numbers, words

from outerloop.config import load
from outerloop.launcher.train import train
from outerloop.state.checkpoint import write_atomically

Row = dict[str, Any]
ADAMW, MUON = (5e-4, 1e-3, 2e-3, 4e-3), (1e-3, 2e-3, 4e-3, 8e-3)
NESTEROV = ((0.7, 0.6), (0.7, 0.9), (0.9, 0.6), (1.0, 0.3))
"""Pairs of outer learning rate and outer momentum."""


@dataclass(frozen=True)
class Case:
    """A recipe, and the values to try when it is tuned.

    lr: inner learning rates.
    outer: pairs of outer learning rate and momentum; empty to keep the recipe's own values.
    alone: whether a single worker trains on the whole batch.
    """

    overrides: tuple[str, ...]
    lr: tuple[float, ...]
    outer: tuple[tuple[float, float], ...] = ()
    alone: bool = False


CASES = {
    "ddp_adamw": Case(("recipe=ddp",), ADAMW),
    "ddp_muon": Case(("recipe=ddp", "inner=muon"), MUON),
    "ddp_adamw_nesterov": Case(("recipe=diloco",), ADAMW, NESTEROV, alone=True),
    "ddp_muon_nesterov": Case(("recipe=muloco",), MUON, NESTEROV, alone=True),
    "diloco": Case(("recipe=diloco",), ADAMW, NESTEROV),
    "muloco": Case(("recipe=muloco",), MUON, NESTEROV),
    "sparseloco": Case(("recipe=sparseloco",), ADAMW),
    "outerloop_v1": Case(("recipe=outerloop",), MUON),
    "rotated_.85": Case(("recipe=outerloop", "compress=rotated"), MUON),
    "rotated_.7": Case(("recipe=outerloop", "compress=rotated", "feedback.beta=0.7"), MUON),
}


@dataclass(frozen=True)
class Run:
    """One run of the benchmark. Its fields are the first fields of its record.

    outer_lr, momentum: settings of the outer optimizer; None to keep the recipe's own values.
    """

    case: str
    steps: int
    sync_every: int
    workers: int
    seed: int
    lr: float
    outer_lr: float | None = None
    momentum: float | None = None


def train_one(run: Run, folder: Path, sequences: int, options: Sequence[str]) -> Row:
    """Train one run in a new folder, which is removed afterwards. Return its record."""
    case, place = CASES[run.case], folder / "-".join(f"{value}" for value in asdict(run).values())
    overrides = [
        *case.overrides,
        "exchange=inprocess",
        *(
            f"steps={run.steps}",
            f"workers={run.workers}",
            f"inner.batch={sequences // run.workers}",
            f"seed={run.seed}",
        ),
        *(f"inner.lr={run.lr}", f"run_dir={place}", "checkpoint.every=0", "eval.every=0"),
    ]
    if run.sync_every > 1:
        overrides.append(f"schedule.sync_every={run.sync_every}")
    if run.outer_lr is not None:
        overrides += [f"method.optimizer.lr={run.outer_lr}", f"method.optimizer.momentum={run.momentum}"]
    summary = train(load.load([*overrides, *options]))
    shutil.rmtree(place)
    bits = 0.0 if case.alone else summary["bits_per_param_per_round"]
    return asdict(run) | {
        "sequences": sequences,
        "options": sorted(options),
        "params": summary["params"],
        "tokens": summary["tokens"],
        "nats": summary["val_loss"],
        "bits_per_param_per_round": bits,
        "bits_per_param_per_step": bits / run.sync_every,
        "bytes_per_token": 0.0 if case.alone else summary["bytes_sent_per_worker"] / summary["tokens"],
        "wall_s": summary["wall_s"],
    }


class Bench:
    """A benchmark that trains the runs that are missing in FILE, and adds their records to it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.rows: list[Row] = json.loads(args.json.read_text()) if args.json.exists() else []

    def row(self, run: Run) -> Row | None:
        """Return the record of a run, or None if there is none yet."""
        wanted = asdict(run) | {"sequences": self.args.sequences, "options": sorted(self.args.options)}
        return next((row for row in self.rows if row.items() >= wanted.items()), None)

    def nats(self, run: Run) -> float:
        """Return the validation loss of a run that has a record."""
        row = self.row(run)
        assert row is not None
        return float(row["nats"])

    def train(self, runs: Iterable[Run]) -> None:
        """Train the runs that have no record yet, `jobs` at a time, each in its own process."""
        todo = [run for run in dict.fromkeys(runs) if self.row(run) is None]
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self.args.jobs, mp_context=context, max_tasks_per_child=1) as pool:
            shared = self.args.runs, self.args.sequences, self.args.options
            futures = [pool.submit(train_one, run, *shared) for run in todo]
            errors = []
            for future in as_completed(futures):
                if future.cancelled():
                    continue
                if error := future.exception():  # let the started runs finish and record them, but start no others
                    errors.append(error)
                    for other in futures:
                        other.cancel()
                    continue
                self.rows.append(future.result())
                write_atomically(self.args.json, (json.dumps(self.rows, indent=1) + "\n").encode())
        if errors:
            raise errors[0]

    def first(self, case: str) -> Run:
        """Return the first tuning run of a case, with the first learning rate of its grid."""
        args = self.args
        sync_every = 1 if case in ("ddp_adamw", "ddp_muon") else args.sync_every[0]
        workers = 1 if CASES[case].alone else args.workers[0]
        return Run(case, args.steps, sync_every, workers, args.seeds[0], CASES[case].lr[0])

    def tune(self, case: str) -> Run:
        """Train the tuning runs of a case, and return the best one."""
        first, rates = self.first(case), sorted(CASES[case].lr)
        self.train(replace(first, lr=lr) for lr in rates)
        while (best := self.best(replace(first, lr=lr) for lr in rates)).lr in (rates[0], rates[-1]):
            rates = sorted([*rates, best.lr / 2 if best.lr == rates[0] else best.lr * 2])
            self.train(replace(first, lr=lr) for lr in rates)
        outer = [replace(best, outer_lr=lr, momentum=momentum) for lr, momentum in CASES[case].outer]
        self.train(outer)
        return self.best([best, *outer])

    def best(self, runs: Iterable[Run]) -> Run:
        """Return the run with the lowest loss."""
        return min(runs, key=self.nats)

    def published(self, case: str, tuned: Run) -> list[Run]:
        """Return the runs of a case for the table, with the tuned values."""
        args = self.args
        every = [1] if tuned.sync_every == 1 else args.sync_every
        product = itertools.product(every, [1] if CASES[case].alone else args.workers, args.seeds)
        return [replace(tuned, sync_every=h, workers=workers, seed=seed) for h, workers, seed in product]


def parser(description: str | None, listed: Callable[[str], list[str]]) -> argparse.ArgumentParser:
    """Return the command-line parser. `listed` parses the value of --cases."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--runs", type=Path, required=True, metavar="FOLDER")
    result.add_argument("--json", type=Path, required=True, metavar="FILE")
    result.add_argument("--cases", type=listed, default=list(CASES), help=f"comma-separated list of {', '.join(CASES)}")
    result.add_argument("--steps", type=int, default=3000, help="inner steps per worker")
    result.add_argument("--sync-every", type=numbers, default=[15, 30, 100])
    result.add_argument("--workers", type=numbers, default=[4, 8])
    result.add_argument("--seeds", type=numbers, default=[0, 1, 2, 3])
    result.add_argument("--sequences", type=int, default=16, help="sequences per inner step, over all workers")
    result.add_argument("--jobs", type=int, default=1)
    result.add_argument("options", nargs="*")
    return result


def main() -> None:
    """Tune every case, then train all of its runs in the table."""
    args = parser(__doc__, words).parse_intermixed_args()
    bench = Bench(args)
    for case in args.cases:
        tuned = bench.tune(case)
        print(f"{case}: lr {tuned.lr:g}, outer lr {tuned.outer_lr}, momentum {tuned.momentum}", flush=True)
        bench.train(bench.published(case, tuned))


if __name__ == "__main__":
    main()
