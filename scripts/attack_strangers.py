"""What a stranger at 100 Mbit/s costs a run with an allow-list: rounds under attack, and calm ones, in turn.

    .venv/bin/python scripts/attack_strangers.py --runs FOLDER [--minutes 10] [--pairs 2] [--workers 5]
        [option=value ...]

Five `outerloop train workers=1` on loopback (attack_swarm.py). In a run of kind "attacked" a process that is not on the
list does from the first round on what attack_stranger.py says. In one of kind "aside" it does the same to a run of two
that nobody measures: on few cores the traffic costs by itself, and this is how much. --out gets one JSON record a run,
and a run that has its record is not run again. The ratios of the medians are printed at the end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from attack_swarm import Listed, round_times, running
from faults_machine import Row

HERE = Path(__file__).parent
KINDS = ("calm", "attacked", "aside")
WARM_S = 10.0
"""After the first round: until it is over memory and rounds are those of a start."""


def measured(kind: str, folder: Path, args: argparse.Namespace) -> Row:
    """One run's record."""
    with ExitStack() as stack:
        swarm = stack.enter_context(running(Listed(folder / "run", workers=args.workers, options=args.options)))
        target = swarm
        if kind == "aside":
            target = stack.enter_context(running(Listed(folder / "aside", workers=2, options=args.options)))
        swarm.follow(WARM_S)
        attack = start(target, args) if kind != "calm" else None
        swarm.look()
        began = time.monotonic()
        swarm.follow(60 * args.minutes)
        record = swarm.report(swarm.machines) | {"kind": kind, "minutes": args.minutes, "options": args.options}
        record |= {"rounds_measured": len(swarm.seconds(began))} | round_times(swarm.seconds(began))
        return record | {"stranger": json.loads(attack.communicate(timeout=120)[0]) if attack else {}}


def start(target: Listed, args: argparse.Namespace) -> subprocess.Popen[str]:
    """The stranger, that knows where all peers are; returns once it is connected to them."""
    addresses = [machine.address for machine in target.machines if machine.address]
    command = [sys.executable, str(HERE / "attack_stranger.py"), "--seconds", str(60 * args.minutes)]
    attack = subprocess.Popen([*command, "--mbit", str(args.mbit), *addresses], stdout=subprocess.PIPE, text=True)
    assert attack.stdout
    attack.stdout.readline()
    return attack


def ratios(records: list[Row]) -> Row:
    """Round times over those of calm runs, medians of medians and of means; the most that a process grew by."""
    found: Row = {}
    for what in ("round_s_median", "round_s_mean"):
        of = {kind: [one[what] for one in records if one["kind"] == kind and one[what]] for kind in KINDS}
        if of["calm"]:
            calm = statistics.median(of["calm"])
            found |= {f"{kind} {what}": statistics.median(of[kind]) / calm for kind in KINDS[1:] if of[kind]}
    for kind in KINDS:
        grown = [max(one["rss_growth_mib"].values()) for one in records if one["kind"] == kind]
        found |= {f"{kind} rss_growth_mib": max(grown)} if grown else {}
    return found


def main() -> None:
    """Every run that has no record yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, metavar="FOLDER", help="for the run directories")
    parser.add_argument("--out", type=Path, default=HERE / "results/strangers", metavar="FOLDER")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--mbit", type=float, default=100.0)
    parser.add_argument("options", nargs="*")
    args = parser.parse_intermixed_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for pair in range(args.pairs):
        for kind in args.kinds.split(","):
            path = args.out / f"{kind}-{pair}.json"
            if not path.exists():
                record = measured(kind, args.runs.absolute() / f"{kind}-{pair}", args)
                path.write_text(json.dumps(record, indent=1) + "\n")
                shown = ("rounds_measured", "round_s_median", "round_s_mean", "rss_growth_mib", "stranger")
                print(path.name, *(f"{key} {record[key]}" for key in shown), flush=True)
    records = [json.loads(path.read_text()) for path in sorted(args.out.glob("*-*.json"))]
    for name, value in ratios(records).items():
        print(f"{name}: {value:.3f}")


if __name__ == "__main__":
    main()
