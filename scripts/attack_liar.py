"""One liar of four for half an hour, with real processes: what the others land, notice and hold meanwhile.

    .venv/bin/python scripts/attack_liar.py --runs FOLDER [--minutes 30] [--json FILE] [option=value ...]

Four `outerloop train workers=1` on loopback with an allow-list (attack_swarm.py). The first CALM of the time nobody
lies. Then the last one does, in turn, what faulty/lie.py and faulty/misbehave.py list, each for an equal share of the
time, and the whole list again. When nine tenths are over a newcomer joins. FILE gets one JSON record: how fast rounds
landed when calm, under each lie, and since the liar was expelled; when that was; who refused what; whether the honest
and the newcomer hold one state. Exit code 1 where they do not, where the run stopped, or where the liar was
not expelled.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import cycle
from pathlib import Path

from attack_swarm import Listed, last_round, round_times, running
from faults_machine import Row
from faulty.lie import LIES

HERE = Path(__file__).parent
CALM, NEWCOMER_AT = 0.1, 0.9
HOSTILE = ("garbled", "huge", "oversized", "corrupt")
EXPELLED = ("expelled", "expels")
"""What the log of a peer says of one that it expels."""


class Attack:
    """The liar's half hour."""

    def __init__(self, swarm: Listed, *, seconds: float, turn_s: float) -> None:
        self.swarm, self.seconds, self.turn_s = swarm, seconds, turn_s
        self.liar, self.honest = swarm.machines[-1], swarm.machines[:-1]
        self.turns: list[Row] = []
        self.expelled_at: float | None = None
        self.began = time.monotonic()

    def run(self) -> Row:
        """Calm, then lies in turn, then a newcomer beside them. Returns the record."""
        self.swarm.follow(CALM * self.seconds)
        calm_until = time.monotonic()
        calm, stopped = self.swarm.seconds(self.began, calm_until), ""
        try:
            self.lie()
        except TimeoutError as error:
            stopped = str(error)
        self.liar.misbehave("")
        honest = [machine for machine in self.swarm.machines if machine is not self.liar]
        newcomer = honest[-1] if len(honest) > len(self.honest) else None
        record = self.swarm.report(honest) | {"minutes": self.seconds / 60, "calm": round_times(calm)}
        after = self.swarm.seconds(self.expelled_at) if self.expelled_at else []
        return record | {
            "turns": self.turns,
            "stopped": stopped,
            "expelled_s": round(self.expelled_at - calm_until, 1) if self.expelled_at else None,
            "after": round_times(after),
            "pace_after": pace(calm, after),
            "newcomer_rounds": sum(row["event"] == "round" for row in newcomer.rows) if newcomer else 0,
            "newcomer_hash": last_round(newcomer).get("slow_hash") if newcomer else None,
            "said": sorted({line for machine in honest for line in lines_of(machine, EXPELLED)}),
        }

    def lie(self) -> None:
        """All lies in turn, and a newcomer near the end. Raises TimeoutError when the run has stopped."""
        for lie in cycle([*LIES, *HOSTILE]):
            if (over := time.monotonic() - self.began) >= self.seconds:
                return
            if self.swarm.newcomers and over >= NEWCOMER_AT * self.seconds:
                self.swarm.add()
            self.turn(lie, min(self.turn_s, self.seconds - over))

    def turn(self, lie: str, seconds: float) -> None:
        """One lie, for so long."""
        began = time.monotonic()
        self.liar.misbehave(lie)
        self.liar.down_until = began + seconds  # the swarm ends it then
        self.swarm.note(lie, self.liar)
        self.swarm.follow(seconds, until=lambda: self.look() and False)
        landed = self.swarm.seconds(began)
        self.turns.append({"lie": lie, "seconds": round(seconds, 1), "rounds": len(landed), **round_times(landed)})

    def look(self) -> bool:
        """Note when all the honest have said that the liar is expelled."""
        if self.expelled_at is None and all(lines_of(machine, EXPELLED) for machine in self.honest):
            self.expelled_at = time.monotonic()
            self.swarm.note("expelled", self.liar)
        return self.expelled_at is not None


def lines_of(machine: object, words: tuple[str, ...]) -> list[str]:
    """Lines of a worker's log with one of these words."""
    log = machine.folder / "workers/0/log.txt"  # type: ignore[attr-defined]
    text = log.read_text(errors="replace") if log.exists() else ""
    return [line[:200] for line in text.splitlines() if any(word in line for word in words)]


def pace(calm: list[float], after: list[float]) -> float | None:
    """Rounds a second of the second over those of the first."""
    if not calm or not after:
        return None
    return round((len(after) / sum(after)) / (len(calm) / sum(calm)), 3)


def main() -> int:
    """The run, its record, and what is asked of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, metavar="FOLDER", help="for the run directories")
    parser.add_argument("--json", type=Path, default=HERE / "results/liar/liar.json", metavar="FILE")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--turn", type=float, default=60.0, help="seconds of one lie")
    parser.add_argument("options", nargs="*")
    args = parser.parse_intermixed_args()
    swarm = Listed(args.runs.absolute(), workers=4, options=args.options, newcomers=1)
    with running(swarm):
        record = Attack(swarm, seconds=60 * args.minutes, turn_s=args.turn).run() | {"options": args.options}
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(record, indent=1) + "\n")
    for key in (
        "rounds",
        "stopped",
        "calm",
        "after",
        "pace_after",
        "expelled_s",
        "rounds_whose_hashes_differ",
        "newcomer_rounds",
    ):
        print(f"{key}: {record[key]}")
    for turn in record["turns"]:
        print(f"  {turn['lie']:<13} {turn['rounds']} rounds in {turn['seconds']} s, median {turn['round_s_median']}")
    return int(bool(record["rounds_whose_hashes_differ"] or record["stopped"]) or record["expelled_s"] is None)


if __name__ == "__main__":
    sys.exit(main())
