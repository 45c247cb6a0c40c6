"""Train with 0, 1 and 2 liars among 8 workers, under each attack and aggregation rule, and record the loss.

    .venv/bin/python scripts/bench_attacks.py --out FOLDER [--recipes diloco,sparseloco,outerloop] [--rules plain,trust]
        [--attacks flip10,alie] [--liars 0,1,2] [--workers 8] [--rounds 15] [--seeds 0] [--jobs 1] [option=value ...]

Workers are threads of one process, and the last workers lie from round 3 on. One run is one JSON file in FOLDER, named
recipe-rule-attack-liars-seed; a run that has a file is skipped, so the same command continues an interrupted benchmark.
The default size (a Llama of one layer, windows of 32 bytes, batches of 4, 15 rounds of 15 inner steps) takes about 9 s
on one core with diloco, and 18 s with outerloop.

rules      plain: the recipe's own aggregate (mean for diloco, senders for the others); the others are the names of
           aggregate=...; with sparseloco and outerloop, rules that average over all peers run with an outer learning
           rate equal to the number of workers, because `senders` divides each value only by the number of its senders,
           usually one. A rule that does not work with a recipe is skipped, with one line that states the reason.
attacks    calm (only without liars); those of payload_attacks.py; and
           labels    the liar trains on text whose bytes are permuted, from the start, and is honest otherwise
           absent    the messages of the liar are missing
           samples   the liar's own payload, and a claim of 2^63 samples
           A liar that replaces its payload begins each round at the slow weights, without a residual.
val_nats   loss of the slow weights of worker 0 on the validation set in nats per byte, or null if the run failed with
           `error`.

Payloads are not screened by norm (clip=none), so the result is that of the rule alone. With the option clip=auto, they
are screened as in a swarm: `refused` counts refused payloads, `refused_others` those of honest workers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch
from attacked_run import AVERAGING, RECIPES, Case, Run
from bench_recipes import numbers
from payload_attacks import ATTACKS

from outerloop.config import load, part_checks
from outerloop.state.checkpoint import write_atomically
from outerloop.types import UserError

RULES = ("plain", "median_clip", *AVERAGING)
KINDS = (*ATTACKS, "labels", "absent", "samples")


def run_case(case: Case, more: Sequence[str], folder: Path) -> str:
    """Run one case, write its record, and return a line for the terminal."""
    torch.set_num_threads(1)
    record = Run(case, more).record()
    write_atomically(folder / case.file, (json.dumps(record, indent=1) + "\n").encode())
    return f"{case.file}  {record['val_nats']}  {record['wall_s']} s  {record['error']}"


def cases(args: argparse.Namespace) -> Iterator[Case]:
    """Yield the runs that were asked for and make sense: calm without liars, and all attacks with liars.

    Print a line for each rule that a recipe refuses.
    """
    for recipe, rule in itertools.product(args.recipes, args.rules):
        size = {"workers": args.workers, "rounds": args.rounds}
        try:
            calm = Case(recipe, rule, "calm", 0, seed=0, **size)
            part_checks.check_parts(load.load(calm.options(args.options)))
        except UserError as why:
            print(f"{recipe} with {rule} is skipped: {why}")
            continue
        for seed, liars in itertools.product(args.seeds, args.liars):
            for attack in args.attacks if liars else ["calm"]:
                if (recipe, attack) != ("diloco", "support"):  # dense payloads: every peer sends every position
                    yield Case(recipe, rule, attack, liars, seed=seed, **size)


def missing(case: Case, more: Sequence[str], folder: Path) -> bool:
    """Return whether a run has no record. Raises SystemExit if its record is from a run with other options."""
    file = folder / case.file
    if file.exists() and json.loads(file.read_text())["options"] != case.options(more):
        raise SystemExit(f"{file} is the record of a run with other options: set another --out, or remove the file")
    return not file.exists()


def chosen_from(allowed: Collection[str]) -> Callable[[str], list[str]]:
    """Return the parser of a comma-separated list of these words."""

    def parse(text: str) -> list[str]:
        found = text.split(",")
        if unknown := [word for word in found if word not in allowed]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(allowed)}")
        return found

    return parse


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder of the records")
    result.add_argument("--recipes", type=chosen_from(RECIPES), default=list(RECIPES), help=", ".join(RECIPES))
    result.add_argument("--rules", type=chosen_from(RULES), default=list(RULES), help=", ".join(RULES))
    result.add_argument("--attacks", type=chosen_from(KINDS), default=list(KINDS), help=", ".join(KINDS))
    result.add_argument("--liars", type=numbers, default=[0, 1, 2], help="numbers of liars; default: 0,1,2")
    result.add_argument("--workers", type=int, default=8, help="number of workers, liars included; default: 8")
    result.add_argument("--rounds", type=int, default=15, help="rounds per run; default: 15")
    result.add_argument("--seeds", type=numbers, default=[0], help="seeds of weights and batches; default: 0")
    result.add_argument("--jobs", type=int, default=1, help="runs at a time, each on one core; default: 1")
    result.add_argument("options", nargs="*", help="options of outerloop train, for all runs")
    return result


def main() -> None:
    """Run every case that has no record yet."""
    args = parser().parse_intermixed_args()
    args.out.mkdir(parents=True, exist_ok=True)
    todo = [case for case in cases(args) if missing(case, args.options, args.out)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.jobs, mp_context=context) as pool:
        for done in as_completed([pool.submit(run_case, case, args.options, args.out) for case in todo]):
            print(done.result(), flush=True)


if __name__ == "__main__":
    main()
