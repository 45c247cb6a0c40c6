"""Compare recipes at equal tokens, model, data and tuning budget; workers are threads of one process.

    .venv/bin/python scripts/bench_recipes.py --runs FOLDER --json FILE [--cases ddp,diloco,...] [--sync-every 15,30]
        [--workers 4,8] [--seeds 0,1] [--lr 1e-3,2e-3,4e-3] [--tune-steps 900] [--inner-steps 3000] [--jobs 2]
        [option=value ...]

First, each case is tuned: it is trained for --tune-steps steps with every learning rate, at the first given H (inner
steps per round, --sync-every), number of workers and seed. The learning rate with the lowest validation loss is used
from then on. Next, each case is trained for --inner-steps steps per worker with every combination of H, number of
workers and seed. All workers together process the same number of sequences per step in all runs. FILE holds one flat
record per run. The same command resumes an interrupted benchmark from FILE, and `outerloop report FOLDER` plots the
runs. Options are those of `outerloop train`.

Exit code 2: FILE has a record of one of the cases with other --sequences or options, a number of steps is not a
multiple of H, or --sequences is not a multiple of the number of workers.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from benchmark_records import check_divisible, check_options, read_records, write_records
from seed_statistics import loss_or_inf

from outerloop.config import load
from outerloop.launcher.train import train

INPROCESS = "exchange=inprocess"
MOMENTUM = "method.optimizer.momentum=0.6"  # for H < 100 inner steps per round; the paper uses 0.9, for H = 500
FLOAT32 = ["~compress.large.values.dtype", "compress.large.values._target_=outerloop.compress.identity.Identity"]
CASES = {
    "ddp": ["recipe=ddp", INPROCESS],
    "demo": ["recipe=demo", INPROCESS],
    "localsgd": ["recipe=localsgd", INPROCESS],
    "diloco_.7_.9": ["recipe=diloco", INPROCESS],
    "diloco_.7_.6": ["recipe=diloco", INPROCESS, MOMENTUM],
    "diloco_int8": ["recipe=diloco_int8", INPROCESS, MOMENTUM],
    "loco_int4": ["recipe=loco", INPROCESS, MOMENTUM],
    "streaming": ["recipe=streaming_diloco", INPROCESS, MOMENTUM],
    "noloco": ["recipe=noloco"],
    "sparta": ["recipe=sparta"],
    "sparseloco": ["recipe=sparseloco", INPROCESS],
    "sparseloco_mean": ["recipe=sparseloco", INPROCESS, "aggregate=mean"],
    "sparseloco_k64": ["recipe=sparseloco", INPROCESS, "compress.large.k=64"],
    "sparseloco_float32": ["recipe=sparseloco", INPROCESS, "compress=topk_fp16", *FLOAT32],
    "sparseloco_warm": ["recipe=sparseloco", INPROCESS, "compress.large.warmup_rounds=10"],
    "sparseloco_k64_warm": ["recipe=sparseloco", INPROCESS, "compress.large.k=64", "compress.large.warmup_rounds=10"],
    "sparseloco_local": ["recipe=sparseloco", INPROCESS, "feedback=local"],
    "decoupled_momentum": ["recipe=decoupled_momentum", INPROCESS],
    "muloco": ["recipe=muloco", INPROCESS],
    "outerloop": ["recipe=outerloop_v1", INPROCESS],  # the version of the records in scripts/results/recipes
    "rotated_.7": ["recipe=outerloop_v1", INPROCESS, "compress=rotated", "feedback.beta=0.7"],
    "rotated_.85": ["recipe=outerloop_v1", INPROCESS, "compress=rotated"],
    "rotated_mean_x4": [
        *("recipe=outerloop_v1", INPROCESS, "compress=rotated", "aggregate=mean", "method.optimizer.lr=4.0"),
        "feedback.beta=0.7",
    ],
    "ddp_muon": ["recipe=ddp", INPROCESS, "inner=muon"],
}
CASES |= {
    f"{name}_late_{steps}": [*CASES[name], f"schedule.delay={steps}", "merge_local=carry"]
    for name in ("diloco_.7_.6", "sparseloco", "sparseloco_warm", "sparseloco_local", "outerloop")
    for steps in (1, 2, 4)
}

Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One run of the benchmark. Its fields are the first fields of its record."""

    case: str
    sync_every: int
    workers: int
    seed: int
    lr: str
    inner_steps: int


def train_one(run: Run, folder: Path, sequences: int, options: list[str]) -> Row:
    """Train one run and return its record. If its run directory already has the results, return those."""
    rounds = run.inner_steps // run.sync_every
    often = max(1, rounds // 6)
    name = "-".join([run.case, f"h{run.sync_every}", f"w{run.workers}", f"lr{run.lr}", f"n{run.inner_steps}"])
    settings = [
        *(f"schedule.sync_every={run.sync_every}", f"rounds={rounds}", f"workers={run.workers}", f"seed={run.seed}"),
        *(f"eval.every={often}", f"checkpoint.every={often}", f"inner.batch={sequences // run.workers}"),
        *(f"inner.lr={run.lr}", f"run_dir={folder / name}-s{run.seed}"),
    ]
    summary = train(load.load([*CASES[run.case], *settings, *options]))
    kept = ("val_loss", "tokens", "params", "bits_per_param_per_round", "payload_bytes_per_worker", "wall_s")
    made_with = {"lr": float(run.lr), "sequences": sequences, "options": sorted(options)}
    return asdict(run) | made_with | {key: summary[key] for key in kept}


class Bench:
    """A benchmark that trains the runs that are missing in FILE, and adds their records to it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.rows = read_records(args.json, list[Row]())
        options = {"sequences": args.sequences, "options": sorted(args.options)}
        for row in self.rows:
            if row["case"] in args.cases:
                check_options(row, options, what=f"{args.json}: a record of {row['case']}")

    def found(self, run: Run) -> Row | None:
        """Return the record of a run, or None if there is none yet."""
        wanted = asdict(run) | {"lr": float(run.lr)}
        return next((row for row in self.rows if row.items() >= wanted.items()), None)

    def work(self, runs: Iterable[Run]) -> None:
        """Train the runs that have no record yet, `jobs` at a time, each in its own process."""
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self.args.jobs, mp_context=context, max_tasks_per_child=1) as pool:
            todo = [run for run in runs if not self.found(run)]
            shared = (self.args.runs, self.args.sequences, self.args.options)
            for future in as_completed([pool.submit(train_one, run, *shared) for run in todo]):
                self.rows.append(future.result())
                write_records(self.args.json, self.rows)

    def tuning(self, case: str) -> list[Run]:
        """Return the short runs that determine a case's learning rate."""
        first = Run(case, h_of(case, self.args.sync_every[0]), self.args.workers[0], self.args.seeds[0], "", 0)
        return [Run(**asdict(first) | {"lr": lr, "inner_steps": self.args.tune_steps}) for lr in self.args.lr]

    def best_lr(self, case: str) -> str:
        """Return the only learning rate, or the one with the lowest loss in the short runs."""
        if len(self.args.lr) == 1:
            return self.args.lr[0]
        return min(self.tuning(case), key=lambda run: loss_or_inf((self.found(run) or {})["val_loss"])).lr

    def published(self, case: str) -> list[Run]:
        """Return the long runs of a case, with its best learning rate."""
        hs = sorted({h_of(case, h) for h in self.args.sync_every})
        product = itertools.product(hs, self.args.workers, self.args.seeds)
        lr = self.best_lr(case)
        return [Run(case, h, workers, seed, lr, self.args.inner_steps) for h, workers, seed in product]


@cache
def h_of(case: str, h: int) -> int:
    """Return `h`, or 1 if the case's recipe exchanges after every inner step."""
    return 1 if load.compose_config(CASES[case]).schedule.sync_every == 1 else h


def numbers(text: str) -> list[int]:
    """Parse "15,30" as [15, 30]."""
    return [int(word) for word in text.split(",")]


def chosen_from(allowed: Collection[str]) -> Callable[[str], list[str]]:
    """Return a function that parses a comma-separated list of these words."""

    def parse(text: str) -> list[str]:
        found = text.split(",")
        if unknown := [word for word in found if word not in allowed]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(allowed)}")
        return found

    return parse


def words(text: str) -> list[str]:
    """Parse "a,b" as ["a", "b"]."""
    return text.split(",")


def check_numbers(args: argparse.Namespace) -> None:
    """Refuse numbers of sequences and steps that a run would round down."""
    for workers in args.workers:
        check_divisible(args.sequences, workers, what="--sequences", by="--workers")
    for case, h in itertools.product(args.cases, args.sync_every):
        check_divisible(args.inner_steps, h_of(case, h), what="--inner-steps", by="--sync-every")
    for case in args.cases if len(args.lr) > 1 else ():
        check_divisible(args.tune_steps, h_of(case, args.sync_every[0]), what="--tune-steps", by="--sync-every")


def main() -> None:
    """Tune the cases, run every combination of case, H, number of workers and seed, and print the best runs first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--cases", type=chosen_from(CASES), default=list(CASES))
    parser.add_argument("--sync-every", type=numbers, default=[15])
    parser.add_argument("--workers", type=numbers, default=[4])
    parser.add_argument("--seeds", type=numbers, default=[0])
    parser.add_argument("--lr", type=words, default=["2e-3"])
    parser.add_argument("--tune-steps", type=int, default=600)
    parser.add_argument("--inner-steps", type=int, default=1200)
    parser.add_argument("--sequences", type=int, default=32, help="sequences per inner step, over all workers")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("options", nargs="*")
    args = parser.parse_intermixed_args()
    check_numbers(args)
    bench = Bench(args)
    if len(args.lr) > 1:
        bench.work(itertools.chain.from_iterable(map(bench.tuning, args.cases)))
    runs = [run for case in args.cases for run in bench.published(case)]
    bench.work(runs)
    for row in sorted(filter(None, map(bench.found, runs)), key=lambda row: loss_or_inf(row["val_loss"])):
        print(
            f"{row['case']:20} H {row['sync_every']:4} workers {row['workers']} seed {row['seed']} lr {row['lr']:.0e}"
            f"  {row['val_loss']:.4f} nats  {row['bits_per_param_per_round']:.3f} bits/parameter/round"
        )


if __name__ == "__main__":
    main()
