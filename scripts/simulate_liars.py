"""Measure how much damage 5 lying members out of 16 can do to a run with exchange.trust=nobody, on a virtual clock.

    .venv/bin/python scripts/simulate_liars.py [--lies calm,NAME,...,mixed] [--minutes 30] [--peers 16] [--liars 5]
        [--seed 0] [--out FILE]

Each case is one simulation (lying_peers.py): without lies (`calm`), with one lie that all liars have from the start, or
with mixed lies (`mixed`): every 20 to 60 s, each liar switches to a random lie, never to one that gets it expelled. The
script skips cases that have a record in --out, and ends with exit code 2 if a record there has other options. It then
checks all records there, prints every guarantee that a record violates (`failures`), and exits with 1 if there is one.
It also reports a case whose lie never changed a message; in `mixed`, one lie is enough.

A record counts the rounds that every honest peer has landed, and the views without a decision (`failed_views`): a round
that is decided in view v has v of them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from bench_recipes import chosen_from
from benchmark_records import check_options, read_records, write_records
from lying_peers import EXPELS, LIES, Simulation

HERE = Path(__file__).parent
Row = dict[str, Any]
CALM, MIXED = "calm", "mixed"
CASES = (CALM, *LIES, MIXED)
MIN_PACE = 0.5
"""Minimum number of rounds with liars, as a fraction of the number of rounds of the calm case."""


def simulated(case: str, args: argparse.Namespace) -> Row:
    """Return the record of one case."""
    lie = "" if case == CALM else case
    record = Simulation(lie, peers=args.peers, liars=args.liars, seed=args.seed).run(60 * args.minutes)
    return record | {"minutes": args.minutes, "seed": args.seed}


def read(args: argparse.Namespace) -> dict[str, Row]:
    """Return the records in --out by case. Refuses records of other options."""
    records = read_records(args.out, dict[str, Row]())
    options = {"minutes": args.minutes, "peers": args.peers, "seed": args.seed}
    for case, record in records.items():
        liars = {} if case == CALM else {"liars": args.liars}
        check_options(record, options | liars, what=f"{args.out}: the record of {case}")
    return records


def pace(record: Row, calm: Row | None) -> float | None:
    """Return the rounds of a record relative to those of the calm case, or None if there is no such case."""
    return round(record["rounds"] / calm["rounds"], 3) if calm and calm["rounds"] else None


def failures(record: Row, calm: Row | None) -> list[str]:
    """Return one line for each guarantee that a case violated."""
    found = [f"honest peers applied different commits in rounds {record['forks']}"] if record["forks"] else []
    found += [f"{peer} stopped: {error}" for peer, error in record["errors"].items()]
    relative = pace(record, calm)
    if relative is not None and relative < MIN_PACE:
        found.append(f"rounds landed at {relative} of the calm pace, less than {MIN_PACE}")
    if record["lie"] == CALM:
        return found
    if record["lie"] not in (MIXED, *record["expressed"]) or not record["expressed"]:
        found.append(f"the lie {record['lie']} was never expressed")
    if record["lie"] in EXPELS and len(record["expelled"]) < record["liars"]:
        found.append(f"only {len(record['expelled'])} of {record['liars']} liars were expelled")
    return found


def main() -> int:
    """Simulate each case that has no record yet, then check all records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lies", type=chosen_from(CASES), default=list(CASES), help="the cases to simulate")
    parser.add_argument("--minutes", type=float, default=30.0, help="virtual minutes of each case")
    parser.add_argument("--peers", type=int, default=16)
    parser.add_argument("--liars", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "results/liar/sixteen.json", metavar="FILE")
    args = parser.parse_args()
    records = read(args)
    for case in args.lies:
        if case not in records:
            records[case] = simulated(case, args)
            write_records(args.out, records)
    failed = False
    for case, record in records.items():
        shown = ("rounds", "failed_views", "expressed", "expelled", "streams")
        print(f"{case:<13} pace {pace(record, records.get(CALM))}", *(f"{key} {record[key]}" for key in shown))
        for line in failures(record, records.get(CALM)):
            failed = True
            print(f"    {line}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
