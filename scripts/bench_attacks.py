"""Train with 0, 1 and 2 liars among 8 workers, under each attack and aggregation rule, and record the loss.

    .venv/bin/python scripts/bench_attacks.py --out FOLDER [--plan reduced] [--recipes diloco,sparseloco,outerloop]
        [--rules plain,trust+clip] [--attacks flip10,alie] [--liars 0,1,2] [--workers 8] [--rounds 15] [--seeds 0]
        [--jobs 1] [option=value ...]

Workers are threads of one process. The last ones are the liars; they lie from round 3 on, counted from 0. One run is
one JSON file in FOLDER, named recipe-rule-attack-liars-seed; a run that has a file is skipped, so the same command
continues an interrupted benchmark. The default size (a Llama of one layer, windows of 32 bytes, batches of 4, 15 rounds
of 15 inner steps) takes about 9 s on one core with diloco, and 18 s with outerloop. scripts/show_attacks.py prints the
table.

plan       full: every combination of the recipes, rules, attacks, liars and seeds that the options name.
           reduced: the runs that scripts/attack_plan.py chooses, the most informative first. --recipes, --rules,
           --attacks, --liars and --seeds have no effect.
rules      plain: the recipe's own aggregate (mean for diloco, senders for the other recipes).
           NAME: aggregate=NAME. With sparseloco and outerloop, a rule that averages over all peers runs with an outer
           learning rate equal to the number of workers, because `senders`, which it replaces, divides each value only
           by the number of its senders, usually one. A rule that does not work with a recipe is skipped, with one
           line that states the reason.
           NAME+clip: payloads are first screened by their norm, as in a swarm (clip=auto). Without +clip, they are not
           (clip=none).
           NAME+clip+scores: in addition, honest workers score payloads and accuse harmful peers, and payloads of peers
           that most others accuse do not count (exclude_accused=true). `excluded`: peer -> first such round, counted
           from 0. `liars_accused`, `honest_accused`: number of accusations of liars, and of honest workers.
attacks    calm (only without liars); those of payload_attacks.py; those of data_attacks.py, in which a liar trains on
           false data; and
           absent    the messages of the liar are missing
           samples   the liar's own payload, and a claim of 2^63 samples
           A liar that replaces its payload begins each round at the slow weights, without a residual. Noloco exchanges
           weights: there, the attack replaces the difference between the liar's fast and slow weights.
val_nats   loss of the slow weights of worker 0 on the validation set in nats per byte, or null if the run failed with
           `error`. `backdoor`: the fraction of validation windows in which these weights continue the trigger with the
           bytes that the liar wants. `refused`: number of refused payloads; `refused_others`: of those, the payloads
           of honest workers.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from attack_plan import Size, applies, first_step, second_step
from attacked_run import AVERAGING, GOSSIP, RECIPES, SCORED, SCREENED, Case, Run
from bench_recipes import chosen_from, numbers
from benchmark_records import read_records, write_records
from data_attacks import FALSE_DATA
from payload_attacks import ATTACKS

from outerloop.config import load, part_checks
from outerloop.types import UserError

ALONE = ("plain", "median_clip", "median_cosine", *AVERAGING)
RULES = tuple(rule + suffix for suffix in ("", SCREENED, SCREENED + SCORED) for rule in ALONE)
KINDS = (*ATTACKS, *FALSE_DATA, "absent", "samples")


def run_case(case: Case, more: Sequence[str], folder: Path) -> str:
    """Run one case, write its record, and return a line for the terminal."""
    torch.set_num_threads(1)
    record = Run(case, more).record()
    write_records(folder / case.file, record)
    return f"{case.file}  {record['val_nats']}  {record['wall_s']} s  {record['error']}"


def cases(args: argparse.Namespace) -> Iterator[Case]:
    """Yield the runs that the options name: with liars, one run per attack; without liars, only "calm".

    Print a line for each rule that a recipe refuses.
    """
    size = Size(args.workers, args.rounds)
    for recipe, rule in itertools.product(args.recipes, args.rules):
        if why := refusal(size.case(recipe, rule, "calm", 0, seed=0), args.options):
            print(f"{recipe} with {rule} is skipped: {why}")
            continue
        for seed, liars in itertools.product(args.seeds, args.liars):
            for attack in args.attacks if liars else ["calm"]:
                if applies(recipe, attack):
                    yield size.case(recipe, rule, attack, liars, seed)


def refusal(case: Case, more: Sequence[str]) -> str:
    """Return why a rule does not work with a recipe, or "" if it works."""
    if case.recipe in GOSSIP and case.rule.removesuffix(SCREENED) != "plain":
        return "a worker combines two messages per round, its own and its partner's, so there is no majority to follow"
    try:
        part_checks.check_parts(load.load(case.options(more)))
    except UserError as why:
        return str(why)
    return ""


def missing(case: Case, more: Sequence[str], folder: Path) -> bool:
    """Return whether a run has no record yet. Raises SystemExit if it has one that was made with other options."""
    file = folder / case.file
    if file.exists() and read_records(file, dict[str, Any]()).get("options") != case.options(more):
        raise SystemExit(f"{file} is the record of a run with other options: set another --out, or remove the file")
    return not file.exists()


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder of the records")
    result.add_argument("--plan", choices=("full", "reduced"), default="full", help="which runs; default: full")
    result.add_argument("--recipes", type=chosen_from(RECIPES), default=list(RECIPES), help=", ".join(RECIPES))
    result.add_argument("--rules", type=chosen_from(RULES), default=list(ALONE), help=", ".join(RULES))
    result.add_argument("--attacks", type=chosen_from(KINDS), default=list(KINDS), help=", ".join(KINDS))
    result.add_argument("--liars", type=numbers, default=[0, 1, 2], help="numbers of liars; default: 0,1,2")
    result.add_argument("--workers", type=int, default=8, help="number of workers, liars included; default: 8")
    result.add_argument("--rounds", type=int, default=15, help="rounds per run; default: 15")
    result.add_argument("--seeds", type=numbers, default=[0], help="seeds of weights and batches; default: 0")
    result.add_argument("--jobs", type=int, default=1, help="runs at a time, each on one core; default: 1")
    result.add_argument("options", nargs="*", help="options of outerloop train, for all runs")
    return result


def run_all(planned: Iterable[Case], args: argparse.Namespace) -> None:
    """Run the cases that have no record yet, in their order, and print a line for each."""
    todo = [case for case in dict.fromkeys(planned) if missing(case, args.options, args.out)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.jobs, mp_context=context) as pool:
        jobs = [pool.submit(run_case, case, args.options, args.out) for case in todo]
        for count, done in enumerate(as_completed(jobs), 1):
            print(f"{count}/{len(todo)}  {done.result()}", flush=True)


def main() -> None:
    """Run every case of the plan that has no record yet."""
    args = parser().parse_intermixed_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.plan == "full":
        run_all(cases(args), args)
    else:
        size = Size(args.workers, args.rounds)
        run_all(first_step(size), args)
        run_all(second_step(size, args.out), args)


if __name__ == "__main__":
    main()
