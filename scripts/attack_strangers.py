"""Measure how much an attack by a stranger costs a run with an allow-list, in alternating runs with and without it.

    .venv/bin/python scripts/attack_strangers.py --runs FOLDER [--minutes 10] [--pairs 2] [--workers 5]
        [--kinds calm,attacked,open] [option=value ...]

Five machines run `outerloop train workers=1` on loopback (attack_swarm.py). In a run of kind "attacked", a process that
is not on the list runs attack_stranger.py, at --mbit, after the first rounds. It has the last CPU core to itself. The
five machines share the other cores, even in runs without an attack, so that the stranger's own computation does not
count as a cost to the run.

The script writes one JSON record per run to --out, even for a run that the stranger stops, and skips runs that already
have one. At the end it prints the ratios of the medians, and the CPU seconds per second of the five machines. It exits
with 1 if a guarantee was violated: for example, if a run stopped, or if the attack exceeded a bound in MOST; and with 2
if --out has a record of one of --kinds that was made with other options.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from attack_swarm import Listed, cpu_s, round_times, running
from bench_recipes import chosen_from
from benchmark_records import check_options, read_records, write_records
from faults_machine import Row

HERE = Path(__file__).parent
KINDS = ("calm", "attacked", "open")
"""A run of kind "open" is attacked and has no allow-list. It must continue, but its round times are not bounded."""
CORES = sorted(os.sched_getaffinity(0))
WARM_S = 10.0
"""Seconds of warm-up after the first round, in which memory use and round times are not representative."""
MOST = {"attacked round_s_median": 1.05, "attacked rss_growth_mib": 95.0}
"""The bounds from docs/explanation/threat-model.md: 5 % of the round time, and 100 MB (95 MiB) per process."""


def measured(kind: str, folder: Path, args: argparse.Namespace) -> Row:
    """Run the swarm once, attacked unless `kind` is "calm", and return the record."""
    with ExitStack() as stack:
        machines = Listed(folder / "run", workers=args.workers, options=args.options)
        if kind == "open":
            remove_lists(machines)
        swarm = stack.enter_context(running(machines))
        swarm.follow(WARM_S)
        attack = stack.enter_context(attacking(swarm, args)) if kind != "calm" else None
        swarm.look()
        began, used_s, stopped = time.monotonic(), cpu_s(swarm.machines), ""
        try:
            swarm.follow(60 * args.minutes)
        except TimeoutError as error:
            stopped = str(error)
        record = swarm.report(swarm.machines) | {"kind": kind} | options_of(kind, args)
        record |= {"rounds_measured": len(swarm.seconds(began)), "stopped": stopped}
        record["cpu_s_per_s"] = round((cpu_s(swarm.machines) - used_s) / (time.monotonic() - began), 3)
        record |= round_times(swarm.seconds(began))
        if attack and stopped:
            attack.terminate()
        return record | {"stranger": report_of(attack) if attack else {}}


def options_of(kind: str, args: argparse.Namespace) -> Row:
    """Return the options of a run of this kind, as its record has them."""
    options = {"workers": args.workers, "minutes": args.minutes, "options": args.options}
    return options if kind == "calm" else options | {"mbit": args.mbit}


def check_records(args: argparse.Namespace) -> None:
    """Refuse records of the chosen kinds that were made with other options."""
    for path in args.out.glob("*-*.json"):
        record = read_records(path, Row())
        if record["kind"] in args.kinds:
            check_options(record, options_of(record["kind"], args), what=f"{path}: the record")


def remove_lists(swarm: Listed) -> None:
    """Remove the allow-list from the options of all machines, as in an open run."""
    for machine in swarm.machines:
        machine.options = [option for option in machine.options if not option.startswith("exchange.allow=")]


def report_of(attack: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for the stranger to end, and return the report that it printed last.

    The output is read from `stdout`, because `communicate` would lose what was buffered with the line "connected".
    """
    attack.wait(timeout=120)
    assert attack.stdout is not None
    report: dict[str, Any] = json.loads(attack.stdout.read())
    return report


@contextmanager
def attacking(target: Listed, args: argparse.Namespace) -> Iterator[subprocess.Popen[str]]:
    """Attack all peers until the block ends. Yield the stranger's process once it is connected."""
    addresses = [machine.address for machine in target.machines if machine.address]
    command = ["taskset", "--cpu-list", str(CORES[-1]), sys.executable, str(HERE / "attack_stranger.py")]
    command += ["--seconds", str(60 * args.minutes), "--mbit", str(args.mbit), *addresses]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attack:
        try:
            assert attack.stdout
            if attack.stdout.readline() != "connected\n":
                raise RuntimeError(
                    f"attack_stranger.py ended before it was connected to {addresses}: nothing was attacked"
                )
            yield attack
        finally:
            attack.terminate()


def failures(records: list[Row]) -> list[str]:
    """Return one line for each guarantee that these runs violated."""
    found = [f"a run of kind {one['kind']} stopped: {one['stopped']}" for one in records if one["stopped"]]
    for one in records:
        if not one["rounds_measured"]:
            found.append(f"a run of kind {one['kind']} has landed no round")
        if differ := one["rounds_whose_hashes_differ"]:
            found.append(f"peers of a run of kind {one['kind']} hold different states after rounds {differ}")
    shown = ratios(records)
    over = [name for name, most in MOST.items() if shown.get(name, 0.0) > most]
    return found + [f"{name} is {shown[name]:.3f}, more than {MOST[name]}" for name in over]


def ratios(records: list[Row]) -> Row:
    """Return for each kind of run its round times relative to runs without an attack, memory growth and CPU use."""
    found: Row = {}
    for what in ("round_s_median", "round_s_mean"):
        of = {kind: [one[what] for one in records if one["kind"] == kind and one[what]] for kind in KINDS}
        if of["calm"]:
            calm = statistics.median(of["calm"])
            found |= {f"{kind} {what}": statistics.median(of[kind]) / calm for kind in KINDS[1:] if of[kind]}
    for kind in KINDS:
        grown = [max(one["rss_growth_mib"].values()) for one in records if one["kind"] == kind]
        found |= {f"{kind} rss_growth_mib": max(grown)} if grown else {}
        spent = [one["cpu_s_per_s"] for one in records if one["kind"] == kind]
        found |= {f"{kind} cpu_s_per_s": statistics.median(spent)} if spent else {}
    return found


def main() -> int:
    """Start every run that has no record yet, then check all records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, metavar="FOLDER", help="parent of the run directories")
    parser.add_argument("--out", type=Path, default=HERE / "results/strangers", metavar="FOLDER")
    parser.add_argument("--kinds", type=chosen_from(KINDS), default=["calm", "attacked"], help=", ".join(KINDS))
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--mbit", type=float, default=100.0)
    parser.add_argument("options", nargs="*")
    args = parser.parse_intermixed_args()
    check_records(args)
    os.sched_setaffinity(0, CORES[:-1] or CORES)  # child processes inherit this
    for pair in range(args.pairs):
        for kind in args.kinds:
            path = args.out / f"{kind}-{pair}.json"
            if not path.exists():
                record = measured(kind, args.runs.absolute() / f"{kind}-{pair}", args)
                write_records(path, record)
                shown = (
                    "rounds_measured",
                    "stopped",
                    "round_s_median",
                    "round_s_mean",
                    "cpu_s_per_s",
                    "rss_growth_mib",
                    "stranger",
                )
                print(path.name, *(f"{key} {record[key]}" for key in shown), flush=True)
    records = [read_records(path, Row()) for path in sorted(args.out.glob("*-*.json"))]
    for name, value in ratios(records).items():
        print(f"{name}: {value:.3f}")
    found = failures(records)
    print("\n".join(found))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
