"""Measure how much damage one lying member out of four can do to a run, with real processes.

    .venv/bin/python scripts/attack_liar.py --runs FOLDER [--lies NAME,...] [--minutes 3] [--out FOLDER]
        [option=value ...]
    .venv/bin/python scripts/attack_liar.py --runs FOLDER --lies all --minutes 30

Four machines run `outerloop train workers=1` on loopback with an allow-list (attack_swarm.py). At first, all members
are honest. After a fraction CALM of the run, the last member starts the named lie (faulty/lie.py, faulty/misbehave.py),
and after NEWCOMER_AT another machine joins. Each lie gets its own run. With `--lies all`, a single run has all lies,
one after another. In this run, the lie that gets the liar expelled comes last, from LAST_AT on, because the other peers
ignore an expelled liar. A second newcomer joins after SECOND_AT.

The script writes one JSON record per run to --out and skips runs that already have one. A record holds the pace of
rounds before the lie, during each lie and after the liar's expulsion; the time of the expulsion; and each peer's
refusals. The script prints every guarantee that a record in --out violates (`failures`), and exits with 1 if there is
one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from attack_swarm import Listed, last_round, round_times, running
from faults_machine import Machine, Row
from faulty.lie import LIES

HERE = Path(__file__).parent
CALM, NEWCOMER_AT = 0.2, 0.5
LAST_AT, SECOND_AT = 0.6, 0.8
"""In a run with all lies: the fractions of the run after which the last lie, which gets the liar expelled, starts, and
after which the second newcomer joins."""
HOSTILE = ("garbled", "huge", "oversized", "corrupt")
EXPELS = ("equivocate",)
"""Lies that always get the liar expelled. Other lies can have this effect, too: for example, the signatures of a forged
commit can contradict the liar's own vote."""
ALL = (*(lie for lie in LIES if lie not in (*EXPELS, "certificates")), *HOSTILE, "certificates", *EXPELS)
"""All lies, in the order in which a single run has them."""
MIN_PACE = 0.8
"""Minimum rounds per second after the expulsion, as a fraction of the rounds per second before the lie."""
EXPELLED = "is expelled from the run"
"""Part of the line that a peer logs when it expels another peer."""


class Attack:
    """One run in which a member, the liar, misbehaves in one or more ways (lies), one after another."""

    def __init__(self, swarm: Listed, *lies: str, seconds: float) -> None:
        self.swarm, self.lies, self.seconds = swarm, lies, seconds
        self.liar, self.honest = swarm.machines[-1], swarm.machines[:-1]
        self.liar_id = swarm.ids[self.liar.index]
        self.joined: list[Machine] = []
        self.expelled_at: float | None = None
        self.began = self.lied_at = time.monotonic()
        self.told: list[tuple[str, float]] = []

    def run(self) -> Row:
        """Follow the run, first without lies, then with lies and newcomers.

        Return the record, even if rounds stop landing.
        """
        stopped = ""
        try:
            for share, step in self.timetable():
                self.follow(share)
                step()
            self.follow(1.0)
        except TimeoutError as error:
            stopped = str(error)
        return self.record(stopped)

    def timetable(self) -> list[tuple[float, Callable[[], object]]]:
        """Return (time, action) pairs that start the lies and the newcomers, sorted by time (a fraction of the run)."""
        early = len(self.lies) - 1
        begins = [CALM + index * (LAST_AT - CALM) / early for index in range(early)] + [LAST_AT if early else CALM]
        lies = [(share, partial(self.tell, lie)) for share, lie in zip(begins, self.lies, strict=True)]
        joins = [(share, self.join) for share in (NEWCOMER_AT, SECOND_AT)[: len(self.swarm.newcomers)]]
        return sorted([*lies, *joins], key=lambda entry: entry[0])

    def tell(self, lie: str) -> None:
        """Switch the liar to this lie."""
        self.told.append((lie, time.monotonic()))
        self.lied_at = self.told[0][1]
        self.liar.down_until = float("inf")  # if the liar's process exits, it is not restarted
        self.liar.misbehave(lie)
        self.swarm.note(lie, self.liar)

    def join(self) -> None:
        """Start a newcomer."""
        self.joined.append(self.swarm.add())

    def follow(self, share: float) -> None:
        """Follow the swarm until this fraction of the run has passed. Raises TimeoutError if rounds stop landing."""
        left = self.began + share * self.seconds - time.monotonic()
        self.swarm.follow(left, until=lambda: self.look() and False)

    def look(self) -> bool:
        """Return whether all honest members have logged the liar's expulsion, and record when they first had."""
        if self.expelled_at is None and all(self.liar_id in "\n".join(expelled(machine)) for machine in self.honest):
            self.expelled_at = time.monotonic()
            self.swarm.note("expelled", self.liar)
        return self.expelled_at is not None

    def record(self, stopped: str) -> Row:
        """Return the record of this run: its measurements, and the expulsions that honest members logged."""
        honest = [machine for machine in self.swarm.machines if machine is not self.liar]
        calm, lied = self.swarm.seconds(self.began, self.lied_at), self.swarm.seconds(self.lied_at)
        after = self.swarm.seconds(self.expelled_at) if self.expelled_at else []
        said = {line for machine in honest for line in expelled(machine)}
        return self.swarm.report(honest) | {
            "lie": self.lies[0] if len(self.lies) == 1 else "all",
            "minutes": self.seconds / 60,
            "stopped": stopped,
            "calm": round_times(calm),
            "under_the_lie": round_times(lied),
            "pace": pace(calm, lied),
            "paces": self.paces(calm),
            "after": round_times(after),
            "pace_after": pace(calm, after),
            "expelled_s": round(self.expelled_at - self.lied_at, 1) if self.expelled_at else None,
            "said": sorted(said),
            "honest_ended": [
                event for event in self.swarm.events if ended(event) and event["machine"] != self.liar.index
            ],
            "honest_expelled": sorted(line for line in said if self.liar_id not in line),
            "newcomer_rounds": min(map(landed, self.joined), default=0),
            "newcomer_hashes": [last_round(machine).get("slow_hash") for machine in self.joined],
        }

    def paces(self, calm: list[float]) -> Row:
        """Return lie -> rounds per second during the lie, relative to the rounds per second before the first lie.

        `calm`: seconds between rounds before the first lie. A lie lasts until the next lie begins or the liar is
        expelled.
        """
        ends = [at for _, at in self.told[1:]] + [self.expelled_at or float("inf")]
        return {lie: pace(calm, self.swarm.seconds(at, end)) for (lie, at), end in zip(self.told, ends, strict=False)}


def failures(record: Row) -> list[str]:
    """Return one line for each guarantee that this run violated."""
    found = [f"the run stopped: {record['stopped']}"] if record["stopped"] else []
    if record["rounds_whose_hashes_differ"]:
        found.append(f"honest members hold different states after rounds {record['rounds_whose_hashes_differ']}")
    if not record["newcomer_rounds"]:
        found.append("the newcomer has landed no round")
    if record["honest_ended"]:
        found.append(f"honest machines ended unexpectedly: {record['honest_ended']}")
    if record["honest_expelled"]:
        found.append(f"an honest peer was expelled: {record['honest_expelled']}")
    if record["lie"] in (*EXPELS, "all") and record["expelled_s"] is None:
        found.append("the liar was not expelled")
    if record["lie"] == "all" and (record["pace_after"] or 0.0) < MIN_PACE:
        found.append(f"the pace after the expulsion is {record['pace_after']} of the pace before, less than {MIN_PACE}")
    return found


def expelled(machine: Machine) -> list[str]:
    """Return the lines of the machine's worker log that report an expulsion."""
    log = machine.folder / "workers/0/log.txt"
    text = log.read_text(errors="replace") if log.exists() else ""
    return [line[:400] for line in text.splitlines() if EXPELLED in line]


def ended(event: Row) -> bool:
    """Return whether an event reports that a machine crashed without an injected fault."""
    return str(event["kind"]).startswith("crashed")


def landed(machine: Machine) -> int:
    """Return the number of rounds that a machine has landed."""
    return sum(row["event"] == "round" and not row["failed"] for row in machine.rows)


def pace(calm: list[float], other: list[float]) -> float | None:
    """Return the rounds per second of `other` relative to `calm`, or None if either list of round times is empty."""
    if not calm or not other:
        return None
    return round((len(other) / sum(other)) / (len(calm) / sum(calm)), 3)


def main() -> int:
    """Start a run for every lie that has no record yet, then check all records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, metavar="FOLDER", help="parent of the run directories")
    parser.add_argument("--out", type=Path, default=HERE / "results/liar", metavar="FOLDER")
    parser.add_argument("--lies", default=",".join([*LIES, *HOSTILE]))
    parser.add_argument("--minutes", type=float, default=3.0, help="minutes of each run")
    parser.add_argument("options", nargs="*")
    args = parser.parse_intermixed_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for lie in args.lies.split(","):
        path = args.out / f"{lie}.json"
        if not path.exists():
            lies = ALL if lie == "all" else (lie,)
            swarm = Listed(args.runs.absolute() / lie, workers=4, options=args.options, newcomers=min(len(lies), 2))
            with running(swarm):
                record = Attack(swarm, *lies, seconds=60 * args.minutes).run() | {"options": args.options}
            path.write_text(json.dumps(record, indent=1) + "\n")
    failed = False
    for record in [json.loads(path.read_text()) for path in sorted(args.out.glob("*.json"))]:
        shown = ("rounds", "pace", "paces", "pace_after", "expelled_s", "newcomer_rounds")
        print(f"{record['lie']:<13}", *(f"{key} {record[key]}" for key in shown), flush=True)
        for line in failures(record):
            failed = True
            print(f"    {line}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
