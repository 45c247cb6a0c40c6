"""Measure how much damage one lying member out of four can do to a run, with real processes.

    .venv/bin/python scripts/attack_liar.py --runs FOLDER [--trust members] [--lies NAME,...] [--minutes 3]
        [--out FOLDER] [option=value ...]
    .venv/bin/python scripts/attack_liar.py --runs FOLDER --trust=nobody --lies all --minutes 30

Four machines run `outerloop train workers=1` on loopback with an allow-list (attack_swarm.py). At first, all members
are honest. After a fraction CALM of the run, the last member starts the named lie (faulty/lie.py, faulty/misbehave.py),
and after NEWCOMER_AT another machine joins. Each lie gets its own run. The lies are those against the protocol of the
runs: Paxos with --trust=members, HotStuff-2 with --trust=nobody.

With `--lies all`, a single run has all lies, one after another. In this run, the lie that gets the liar expelled comes
last, from LAST_AT on, because the other peers ignore an expelled liar. A newcomer joins when the lie `states` starts,
which lasts STATES_LASTS times as long as other lies, and another one after SECOND_AT.

The script writes one JSON record per run to --out and skips runs that already have one. It exits with 2 if such a
record was made with other options. A record holds the pace of rounds before the lie, during each lie and after the
liar's expulsion; how often each lie changed what the liar sent (`expressed`); the time of the expulsion; and each
peer's refusals. The script prints every guarantee that a record in --out violates (`failures`), and exits with 1 if
there is one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from attack_swarm import Listed, last_round, round_times, running
from benchmark_records import check_options, read_records, write_records
from faults_machine import Machine, Row
from faulty.lie import STATES, lies

HERE = Path(__file__).parent
CALM, NEWCOMER_AT = 0.2, 0.5
LAST_AT, SECOND_AT = 0.6, 0.8
"""In a run with all lies: the fractions of the run after which the last lie, which gets the liar expelled, starts, and
after which the second newcomer joins."""
HOSTILE = ("corrupt", "garbled", "huge", "oversized")
"""Lies about payloads. `corrupt` comes first, because it changes only what others download from the liar, and they
download less from a peer whose payloads were unusable before."""
EXPELS = {"members": "equivocate", "nobody": "digests"}
"""exchange.trust -> the lie that always gets the liar expelled. Other lies can have this effect, too: for example, the
signatures of a forged commit can contradict the liar's own vote in Paxos."""
STATES_LASTS = 6
"""Duration of the lie `states` in a run with all lies, relative to that of another lie: a newcomer must start and
request a state meanwhile."""
MIN_PACE_AFTER = 0.8
"""Minimum rounds per second after the expulsion, as a fraction of the rounds per second before the lie."""
MIN_PACE = 0.5
"""Minimum rounds per second from the first lie to the expulsion, as the same fraction, with exchange.trust=nobody."""
EXPELLED = "is expelled from the run"
"""Part of the line that a peer logs when it expels another peer."""


def names(trust: str) -> tuple[str, ...]:
    """Return the names of all lies of a run with this exchange.trust, except those about payloads."""
    return tuple(lie.name for lie in lies(trust))


def all_lies(trust: str) -> tuple[str, ...]:
    """Return all lies, in the order in which a single run has them.

    Forged certificates and the lie that gets the liar expelled come last.
    """
    late = ("certificates", EXPELS[trust])
    return (*(lie for lie in names(trust) if lie not in late), *HOSTILE, *late)


class Attack:
    """One run in which a member, the liar, misbehaves in one or more ways (lies), one after another."""

    def __init__(self, swarm: Listed, *lies: str, seconds: float, trust: str = "members") -> None:
        self.swarm, self.lies, self.seconds, self.trust = swarm, lies, seconds, trust
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
        *early, last = self.lies
        weights = [STATES_LASTS if lie == STATES else 1 for lie in early]
        begins = [CALM + (LAST_AT - CALM) * sum(weights[:index]) / sum(weights) for index in range(len(early))]
        started = dict(zip(early, begins, strict=True)) | {last: LAST_AT if early else CALM}
        told = [(share, partial(self.tell, lie)) for lie, share in started.items()]
        joins = (started[STATES], SECOND_AT) if early and STATES in early else (NEWCOMER_AT, SECOND_AT)
        joined = [(share, self.join) for share in joins[: len(self.swarm.newcomers)]]
        return sorted([*told, *joined], key=lambda entry: entry[0])

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
            "trust": self.trust,
            "lie": self.lies[0] if len(self.lies) == 1 else "all",
            "stopped": stopped,
            "calm": round_times(calm),
            "under_the_lie": round_times(lied),
            "pace": pace(calm, lied),
            "pace_until_expulsion": pace(calm, self.swarm.seconds(self.lied_at, self.expelled_at or float("inf"))),
            "paces": self.paces(calm),
            "expressed": {lie: self.liar.misbehaved()[lie] for lie in self.lies},
            "after_expulsion": [lie for lie, at in self.told if at >= (self.expelled_at or float("inf"))],
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
    """Return one line for each guarantee that this run violated, and for each lie that it did not test."""
    found = [f"the run stopped: {record['stopped']}"] if record["stopped"] else []
    if record["rounds_whose_hashes_differ"]:
        found.append(f"honest members hold different states after rounds {record['rounds_whose_hashes_differ']}")
    if not record["newcomer_rounds"]:
        found.append("the newcomer has landed no round")
    if record["honest_ended"]:
        found.append(f"honest machines ended unexpectedly: {record['honest_ended']}")
    if record["honest_expelled"]:
        found.append(f"an honest peer was expelled: {record['honest_expelled']}")
    return found + untested(record) + slow(record)


def untested(record: Row) -> list[str]:
    """Return one line for each lie that changed nothing, although the liar was a member, and if it was not expelled.

    Records that were made before lies were counted are not checked.
    """
    counts, trust = record.get("expressed", {}), record.get("trust", "members")
    silent = [lie for lie, times in counts.items() if not times and lie not in record["after_expulsion"]]
    found = [f"the lie {lie} was never expressed" for lie in silent]
    if record["lie"] in (EXPELS[trust], "all") and record["expelled_s"] is None:
        found.append("the liar was not expelled")
    return found


def slow(record: Row) -> list[str]:
    """Return one line for each minimum pace that the rounds missed."""
    found, after, until = [], record.get("pace_after") or 0.0, record.get("pace_until_expulsion")
    if record["lie"] == "all" and after < MIN_PACE_AFTER:
        found.append(f"the pace after the expulsion is {after} of the pace before, less than {MIN_PACE_AFTER}")
    if record.get("trust") == "nobody" and until is not None and until < MIN_PACE:
        found.append(f"the pace until the expulsion is {until} of the pace before, less than {MIN_PACE}")
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
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="default: a folder in results/liar for each trust")
    parser.add_argument("--trust", choices=("members", "nobody"), default="members", help="exchange.trust of the runs")
    parser.add_argument("--lies", help="default: all lies of the protocol, each in its own run")
    parser.add_argument("--minutes", type=float, default=3.0, help="minutes of each run")
    parser.add_argument("options", nargs="*")
    args = parser.parse_intermixed_args()
    out = args.out or HERE / "results/liar" / ("nobody" if args.trust == "nobody" else "")
    known = (*all_lies(args.trust), "all")
    chosen = args.lies.split(",") if args.lies else known[:-1]
    if unknown := set(chosen) - set(known):
        parser.error(f"--lies {', '.join(unknown)} must be one of {', '.join(known)}")
    paths = {lie: out / f"{lie}.json" for lie in known}
    for lie in [lie for lie in chosen if missing(paths[lie], args)]:
        write_records(paths[lie], recorded(lie, args))
    return int(any([show(read_records(path, Row())) for path in paths.values() if path.exists()]))


def missing(file: Path, args: argparse.Namespace) -> bool:
    """Return whether a run has no record yet. Refuses a record that was made with other options."""
    record = read_records(file, Row())
    check_options(record, options_of(args), what=f"{file}: the record")
    return not record


def options_of(args: argparse.Namespace) -> Row:
    """Return the options of a run, as its record has them."""
    return {"trust": args.trust, "minutes": args.minutes, "options": args.options}


def recorded(lie: str, args: argparse.Namespace) -> Row:
    """Run a swarm with one lie, or with all lies, and return its record."""
    told = all_lies(args.trust) if lie == "all" else (lie,)
    options = [*args.options, f"exchange.trust={args.trust}"]
    swarm = Listed(args.runs.absolute() / lie, workers=4, options=options, newcomers=min(len(told), 2))
    with running(swarm):
        return Attack(swarm, *told, seconds=60 * args.minutes, trust=args.trust).run() | options_of(args)


def show(record: Row) -> bool:
    """Print a record and its failures. Return whether there are any."""
    shown = ("rounds", "pace", "paces", "expressed", "pace_after", "expelled_s", "newcomer_rounds")
    print(f"{record['lie']:<13}", *(f"{key} {record[key]}" for key in shown if key in record), flush=True)
    found = failures(record)
    print("".join(f"    {line}\n" for line in found), end="")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
