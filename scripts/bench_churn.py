"""Train an open run whose processes come and go, and check that its rounds, its loss and its records do not suffer.

    .venv/bin/python scripts/bench_churn.py --runs FOLDER --json FILE [--minutes 60] [--processes 12] [--alive 5,20]
        [--kill-every 5] [--seed 0] [--calm FILE] [option=value ...]

Process 0 is an `outerloop host`, all others are `outerloop join`, each with the address of a random running process, on
loopback and with one thread. Each process, including the host, stays for a random time (--alive: shortest and longest,
in minutes, from its first counted payload), leaves, and returns with the same command after 15 to 90 s. It leaves by
SIGINT, as with Ctrl-C; in every --kill-every-th departure, SIGKILL is sent to all of its processes at once instead. A
departure is postponed until the other processes that take part are a majority of the last round's roster, because any
run waits while it has no majority. At the end, all processes get SIGINT at once.

A calm run follows, in which the same number of processes stay until the end. It ends when it has counted as many
payloads as the first run (--calm FILE uses the calm run of an earlier record instead). The learning rate is constant
after the warm-up, so that losses can be compared at equal numbers of payloads. Options are those of `outerloop host`.

FILE holds the records of both runs: each arrival and departure, the time at which each round first landed, the gaps
between rounds and the events in gaps that were too long, the numbers of payloads that the processes recorded, the
losses, and the processes and folders that were left behind. If the benchmark is interrupted during the calm run, the
same command repeats only the calm run. Exit code 1: a check failed; 2: FILE has a first run with other options, or the
file of --calm has no calm run. Ctrl-C ends all processes.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from benchmark_records import check_options, read_records, refuse, write_records
from churn_plan import calm_stays, stays
from churn_report import checks, errors, failed_rounds, gaps, landed_rounds, totals
from churn_swarm import ChurnSwarm
from faults_machine import Row, left_behind
from faults_report import compared, report
from omegaconf import OmegaConf

from outerloop.launcher.interrupts import raise_terminated
from outerloop.swarm.timeouts import LEAD_S

LAST_S = 60.0
"""Processes do not arrive in the last LAST_S seconds of a run, because they could hardly join before its end."""
PATIENCE_S = 600.0
"""Seconds without a landed round after which a run is aborted."""
SHOWN = ("minutes", "rounds", "loss", "calm_loss", "compared_at", "loss_difference", "failed_rounds", "errors")


def measured(swarm: ChurnSwarm, until: Callable[[], bool]) -> Row:
    """Run one swarm and return its record. All of its processes are killed at the end, even after an error."""
    before = left_behind(swarm.folder)
    try:
        swarm.run_until(until)
        sockets = {path for visitor in swarm.visitors for path in visitor.sockets}
        return record(swarm) | {"left_behind": left_behind(swarm.folder, sockets), "there_before": before}
    finally:
        for visitor in swarm.visitors:
            visitor.signal(signal.SIGKILL)


def record(swarm: ChurnSwarm) -> Row:
    """Return the record of a run that has ended, except for what the run has left behind."""
    rows = [visitor.rows for visitor in swarm.visitors]
    base = report(rows, swarm.first_seen, swarm.events)
    config = OmegaConf.load(swarm.folder / "m0/config.yaml")
    return base | {
        "gaps": gaps(base["round_seen_s"], swarm.events, limit_s=config.exchange.grace_s + LEAD_S),
        "totals": totals(list(map(landed_rounds, rows)), survivors=swarm.survivors),
        "errors": errors(rows),
        "failed_rounds": failed_rounds(rows),
        "stays": swarm.stays,
        "aborted": swarm.aborted,
    }


def pair(text: str) -> tuple[float, float]:
    """Parse "5,20" as (5.0, 20.0)."""
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not a pair of numbers such as 5,20") from None
    if not 0 < low <= high:
        raise argparse.ArgumentTypeError(f"{text}: the first number must be positive and at most the second")
    return low, high


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, metavar="FOLDER", help="parent of the run directories")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--calm", type=Path, metavar="FILE", help="record of an earlier run whose calm run is used")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--alive", type=pair, default=(5.0, 20.0), metavar="MIN,MAX", help="minutes of one stay")
    parser.add_argument("--kill-every", type=int, default=5, metavar="N", help="kill at every N-th departure; 0: never")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("options", nargs="*", metavar="option=value")
    return parser.parse_intermixed_args()


def churned(args: argparse.Namespace) -> Row:
    """Run the swarm whose processes come and go, and return its record."""
    low, high = args.alive
    swarm = ChurnSwarm(
        args.runs.absolute() / "churn",
        plan=[stays(i, alive_s=(60 * low, 60 * high), seed=args.seed) for i in range(args.processes)],
        options=args.options,
        patience_s=PATIENCE_S,
        seed=args.seed,
        arrivals_end_s=60 * args.minutes - LAST_S,
        kill_every=args.kill_every,
    )
    return measured(swarm, lambda: swarm.now_s >= 60 * args.minutes)


def calm(args: argparse.Namespace, *, payloads: int) -> Row:
    """Run a swarm whose processes stay until it has counted `payloads` payloads, and return its record."""
    swarm = ChurnSwarm(
        args.runs.absolute() / "calm",
        plan=[calm_stays(i) for i in range(args.processes)],
        options=args.options,
        patience_s=PATIENCE_S,
        seed=args.seed,
    )
    return measured(swarm, lambda: sum(swarm.counted.values()) >= payloads)


def show(churn: Row) -> None:
    """Print the numbers and the checks of a run."""
    departures = [stay["signal"] for stay in churn["stays"]]
    joins = [stay["joined_after_s"] for stay in churn["stays"]]
    print(f"arrivals: {len(joins)}, of which {joins.count(None)} left before a round counted their payload")
    print(f"departures: {departures.count('interrupt')} by SIGINT, {departures.count('kill')} by SIGKILL")
    print(f"seconds from start to first counted payload: {sorted(s for s in joins if s is not None)}")
    for name in ("gaps", "totals"):
        print(f"{name}: {json.dumps(churn[name])}")
    for name in SHOWN:
        if name in churn:
            print(f"{name}: {churn[name]}")
    for stay in churn["stays"]:
        if stay["unplanned"] or stay["stuck"] or stay["left"]:
            print(f"unexpected: {json.dumps(stay)}")
    for name, holds in churn["checks"].items():
        print(f"{'ok    ' if holds else 'FAILED'} {name}")


def main() -> int:
    """Run the swarm, then the calm one, and write both records. Return exit code 1 if a check fails, else 0."""
    args = parse()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore SIGINT
    signal.signal(signal.SIGTERM, raise_terminated)
    earlier = calm_record(args.calm) if args.calm else None
    churn = finished(args.json, arguments(args)) or churned(args) | {"arguments": arguments(args)}
    write_records(args.json, {"churn": churn | {"checks": checks(churn)}})
    still = earlier or calm(args, payloads=churn["totals"]["payloads"])
    churn |= compared(churn, still)
    churn["loss_difference"] = churn["loss"] / churn["calm_loss"] - 1
    churn["checks"] = checks(churn)
    churn["command"] = sys.argv
    write_records(args.json, {"churn": churn, "calm": still})
    show(churn)
    return 0 if all(churn["checks"].values()) else 1


def arguments(args: argparse.Namespace) -> Row:
    """Return the arguments that determine both runs, as a record stores them."""
    names = ("minutes", "processes", "alive", "kill_every", "seed", "options")
    return {name: list(value) if isinstance(value := getattr(args, name), tuple) else value for name in names}


def calm_record(file: Path) -> Row:
    """Return the record of the calm run in `file`. Refuses a file without one."""
    found = read_records(file, dict[str, Row]()).get("calm")
    return found or refuse(f"--calm {file} has no calm run: pass the FILE of a finished benchmark")


def finished(file: Path, wanted: Row) -> Row | None:
    """Return the record of the first run if `file` contains it, but not that of the calm run; else None.

    Refuses a first run that has other arguments than `wanted`.
    """
    records = read_records(file, dict[str, Row]())
    if "calm" in records or "churn" not in records:
        return None
    check_options(records["churn"].get("arguments", {}), wanted, what=f"{file}: the first run")
    return records["churn"]


if __name__ == "__main__":
    sys.exit(main())
