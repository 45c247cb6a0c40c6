"""Train a swarm whose workers are killed, frozen and interrupted, and measure the cost of these faults.

    .venv/bin/python scripts/bench_faults.py --runs FOLDER --json FILE [--workers 6] [--rounds 400] [--every 20]
        [--seed 0] [--faults kill,freeze,join,...] [--joins 2] [option=value ...]

Every worker is a separate `outerloop train workers=1 exchange.peers=N` on loopback, as if on its own machine. About
every --every seconds, a random fault hits one machine; three in five faults are kills:

    kill        SIGKILL to all of its processes at once, like a power failure; restarted 2 to 10 s later
    freeze      SIGSTOP to all of its processes for 5 to 40 s, then SIGCONT
    interrupt   Ctrl-C; restarted 2 to 10 s later
    corrupt, garbled, oversized, slow
                the machine's payloads are unusable for 10 to 30 s (faulty/misbehave.py)
    join        not a fault: a new machine joins and stays, at most `joins` times

At least half of the machines, and a majority of the last round's roster, always stay unharmed: a fault that would leave
fewer is postponed. Faults stop a minute before the end, so that all machines can finish. A shorter run without faults
comes first (--calm FILE uses an earlier record). The learning rate stays constant, so that the losses of the two runs
can be compared after equal numbers of contributed payloads.

FILE holds a record of each run: each fault with its time, machine and cost to the other machines; the time at which
each round first landed on any machine; the longest round; the final hashes; the losses; and the processes and files
that were left behind.
"""

from __future__ import annotations

import argparse
import json
import signal
from pathlib import Path

from faults_deck import KINDS
from faults_machine import Machine, Row, left_behind
from faults_report import compared, kill_costs_s, report
from faults_swarm import Swarm

SHOWN = ("minutes", "round_s_median", "round_s_longest", "fault_costs_s", "slow_hashes", "hashes_by_round_differ")


def measured(folder: Path, args: argparse.Namespace, *, rounds: int, faults: list[str]) -> Row:
    """Train one swarm and return its record. All of its processes are killed at the end, even after an error."""
    swarm = Swarm(
        folder,
        workers=args.workers,
        rounds=rounds,
        options=args.options,
        faults=faults,
        every_s=args.every,
        patience_s=args.patience,
        seed=args.seed,
        joins=args.joins,
    )
    before = left_behind(folder)
    if before["processes"]:
        raise SystemExit(f"{before['processes']} processes already use {folder}: end them, or choose another --runs")
    try:
        swarm.run()
        record = report([machine.rows for machine in swarm.machines], swarm.first_seen, swarm.events)
        hashes = sorted({one for machine in swarm.machines for one in last_hashes(machine)})
        sockets = {one for machine in swarm.machines for one in machine.sockets}
        return record | {
            "slow_hashes": hashes,
            "left_behind": left_behind(folder, sockets),
            "there_before": before,
            "socket_folders_of_killed": len(sockets),
        }
    finally:
        for machine in swarm.machines:
            machine.signal(signal.SIGCONT)
            machine.signal(signal.SIGKILL)


def last_hashes(machine: Machine) -> list[str]:
    """Return the slow-weight hashes of a machine's workers, from its summary.json."""
    return json.loads((machine.folder / "summary.json").read_text())["slow_hash"]


def kinds(text: str) -> list[str]:
    """Parse "kill,freeze" as ["kill", "freeze"]."""
    if unknown := set(words := text.split(",")) - set(KINDS):
        raise argparse.ArgumentTypeError(f"unknown fault {', '.join(sorted(unknown))}: choose from {', '.join(KINDS)}")
    return words


def main() -> None:
    """Run without faults, then with faults, and write both records and their comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--calm", type=Path, metavar="FILE", help="record of an earlier run without faults")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--calm-rounds", type=int, default=150, help="rounds of the run without faults")
    parser.add_argument("--every", type=float, default=20.0, help="mean seconds between two faults")
    parser.add_argument("--patience", type=float, default=180.0, help="abort after this many seconds without a round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--joins", type=int, default=2, help="number of machines that join late")
    parser.add_argument("--faults", type=kinds, default=list(KINDS))
    parser.add_argument("options", nargs="*")
    args = parser.parse_intermixed_args()
    folder = args.runs.absolute()
    if args.calm:
        calm = json.loads(args.calm.read_text())["calm"]
    else:
        calm = measured(folder / "calm", args, rounds=args.calm_rounds, faults=[])
    args.json.write_text(json.dumps({"calm": calm}, indent=1) + "\n")
    fire = measured(folder / "fire", args, rounds=args.rounds, faults=args.faults) | {"seed": args.seed}
    args.json.write_text(json.dumps({"calm": calm, "fire": fire}, indent=1) + "\n")
    fire |= compared(fire, calm) | {"kill_costs_s": kill_costs_s(fire)}
    args.json.write_text(json.dumps({"calm": calm, "fire": fire}, indent=1) + "\n")
    for key in (*SHOWN, "kill_costs_s", "loss", "calm_loss", "left_behind", "there_before", "socket_folders_of_killed"):
        print(f"{key}: {fire[key]}")


if __name__ == "__main__":
    main()
