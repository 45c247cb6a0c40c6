"""One liar of four, with real processes, one run a lie: what the others land, notice and hold meanwhile.

    .venv/bin/python scripts/attack_liar.py --runs FOLDER [--lies NAME,...] [--minutes 3] [--out FOLDER]
        [option=value ...]

Four `outerloop train workers=1` on loopback with an allow-list (attack_swarm.py). The first CALM of the time nobody
lies. From then on the last one does what the name says in faulty/lie.py and faulty/misbehave.py. At NEWCOMER_AT another
machine joins. Each lie has a run of its own: a liar that is expelled for one, or no longer counted on, says the next
one to nobody. --out gets one JSON record a lie, and a lie that has its record is not told again. A record says how fast
rounds landed when calm, under the lie, and since the liar was expelled; when that was; who refused what. What does not
hold is printed for all records in --out (`failures`), and the exit code is 1 if there is any.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from attack_swarm import Listed, last_round, round_times, running
from faults_machine import Machine, Row
from faulty.lie import LIES

HERE = Path(__file__).parent
CALM, NEWCOMER_AT = 0.2, 0.5
HOSTILE = ("garbled", "huge", "oversized", "corrupt")
EXPELS = ("equivocate",)
"""Lies that expel whoever tells them. Others may: what a made-up commit is signed with can contradict a vote."""
EXPELLED = "is expelled from the run"
"""What the log of a peer says of one that it expels."""


class Attack:
    """One lie. `record` is filled by `run`, however that ends."""

    def __init__(self, swarm: Listed, lie: str, *, seconds: float) -> None:
        self.swarm, self.lie, self.seconds = swarm, lie, seconds
        self.liar, self.honest = swarm.machines[-1], swarm.machines[:-1]
        self.liar_id = swarm.ids[self.liar.index]
        self.newcomer: Machine | None = None
        self.expelled_at: float | None = None
        self.began = self.lied_at = time.monotonic()

    def run(self) -> Row:
        """Calm, then the lie, then a newcomer beside it. Returns the record, also when the run has stopped."""
        stopped = ""
        try:
            self.follow(CALM)
            self.lied_at = time.monotonic()
            self.liar.down_until = float("inf")  # if it ends it is not started again
            self.liar.misbehave(self.lie)
            self.swarm.note(self.lie, self.liar)
            self.follow(NEWCOMER_AT)
            self.newcomer = self.swarm.add()
            self.follow(1.0)
        except TimeoutError as error:
            stopped = str(error)
        return self.record(stopped)

    def follow(self, share: float) -> None:
        """Until this share of the time is over. Raises TimeoutError when the run has stopped."""
        left = self.began + share * self.seconds - time.monotonic()
        self.swarm.follow(left, until=lambda: self.look() and False)

    def look(self) -> bool:
        """Note when all the honest have said that the liar is expelled."""
        if self.expelled_at is None and all(self.liar_id in "\n".join(expelled(machine)) for machine in self.honest):
            self.expelled_at = time.monotonic()
            self.swarm.note("expelled", self.liar)
        return self.expelled_at is not None

    def record(self, stopped: str) -> Row:
        """What is measured, and what the honest have said of expulsions."""
        honest = [machine for machine in self.swarm.machines if machine is not self.liar]
        calm, lied = self.swarm.seconds(self.began, self.lied_at), self.swarm.seconds(self.lied_at)
        after = self.swarm.seconds(self.expelled_at) if self.expelled_at else []
        said = {line for machine in honest for line in expelled(machine)}
        return self.swarm.report(honest) | {
            "lie": self.lie,
            "minutes": self.seconds / 60,
            "stopped": stopped,
            "calm": round_times(calm),
            "under_the_lie": round_times(lied),
            "pace": pace(calm, lied),
            "after": round_times(after),
            "pace_after": pace(calm, after),
            "expelled_s": round(self.expelled_at - self.lied_at, 1) if self.expelled_at else None,
            "said": sorted(said),
            "honest_ended": [
                event for event in self.swarm.events if ended(event) and event["machine"] != self.liar.index
            ],
            "honest_expelled": sorted(line for line in said if self.liar_id not in line),
            "newcomer_rounds": landed(self.newcomer) if self.newcomer else 0,
            "newcomer_hash": last_round(self.newcomer).get("slow_hash") if self.newcomer else None,
        }


def failures(record: Row) -> list[str]:
    """Return what one run shows not to hold, a line each."""
    found = [f"the run stopped: {record['stopped']}"] if record["stopped"] else []
    if record["rounds_whose_hashes_differ"]:
        found.append(f"the honest do not hold one state: rounds {record['rounds_whose_hashes_differ']}")
    if not record["newcomer_rounds"]:
        found.append("the newcomer has landed no round")
    if record["honest_ended"]:
        found.append(f"honest machines ended: {record['honest_ended']}")
    if record["honest_expelled"]:
        found.append(f"an honest peer is expelled: {record['honest_expelled']}")
    if record["lie"] in EXPELS and record["expelled_s"] is None:
        found.append("the liar is not expelled")
    return found


def expelled(machine: Machine) -> list[str]:
    """Lines of a worker's log that tell of an expulsion."""
    log = machine.folder / "workers/0/log.txt"
    text = log.read_text(errors="replace") if log.exists() else ""
    return [line[:400] for line in text.splitlines() if EXPELLED in line]


def ended(event: Row) -> bool:
    """Whether a machine ended that nobody had ended."""
    return str(event["kind"]).startswith("crashed")


def landed(machine: Machine) -> int:
    """Rounds that a machine has landed."""
    return sum(row["event"] == "round" and not row["failed"] for row in machine.rows)


def pace(calm: list[float], other: list[float]) -> float | None:
    """Rounds a second of the second over those of the first."""
    if not calm or not other:
        return None
    return round((len(other) / sum(other)) / (len(calm) / sum(calm)), 3)


def main() -> int:
    """Every lie that has no record yet, and what is asked of all that have one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, metavar="FOLDER", help="for the run directories")
    parser.add_argument("--out", type=Path, default=HERE / "results/liar", metavar="FOLDER")
    parser.add_argument("--lies", default=",".join([*LIES, *HOSTILE]))
    parser.add_argument("--minutes", type=float, default=3.0, help="of each run")
    parser.add_argument("options", nargs="*")
    args = parser.parse_intermixed_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for lie in args.lies.split(","):
        path = args.out / f"{lie}.json"
        if not path.exists():
            swarm = Listed(args.runs.absolute() / lie, workers=4, options=args.options, newcomers=1)
            with running(swarm):
                record = Attack(swarm, lie, seconds=60 * args.minutes).run() | {"options": args.options}
            path.write_text(json.dumps(record, indent=1) + "\n")
    failed = False
    for record in [json.loads(path.read_text()) for path in sorted(args.out.glob("*.json"))]:
        shown = ("rounds", "pace", "pace_after", "expelled_s", "newcomer_rounds")
        print(f"{record['lie']:<13}", *(f"{key} {record[key]}" for key in shown), flush=True)
        for line in failures(record):
            failed = True
            print(f"    {line}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
