"""Run the processes of bench_churn.py, which come and go: one `outerloop host`, and `outerloop join` for all others."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from churn_plan import Stay, is_killed
from faults_machine import Machine, Row
from faults_swarm import Swarm

HOST = ["recipe=sparseloco", "model=nano", "inner.seq_len=64", "inner.batch=4", "inner.lr_floor=1.0"]
HOST += ["schedule.sync_every=30"]
OWN = [
    "threads=1",
    "inner.micro_batch=4",
    "eval.every=10",
    "eval.sequences=64",
    "checkpoint.every=5",
    "log_every=1000000",
]
"""Options of each process, including the host."""
POLL_S = 0.5
PROGRESS_S = 10.0
STUCK_S = 240.0
"""A process is stuck if it has landed no round for this many seconds while others land rounds."""
LEAVE_S = 200.0
"""A process that has not ended this many seconds after its SIGINT is also stuck, and is killed."""
SETTLED_ROUNDS = 5
"""A process is certainly in the roster this many rounds after its first counted payload."""
LINES = 12
"""Number of last lines of output that the record keeps if the exit code of a process is not the expected one."""


@dataclass
class Visitor(Machine):
    """One process that comes and goes; number 0 is the host."""

    stays: Iterator[Stay] = field(default_factory=lambda: iter(()))
    """Stays after the current or next one."""
    stay: Stay | None = None
    """Current stay, or the next one while the process is away; None if it does not return."""
    starts_s: float = 0.0
    """Seconds since the start of the run at which the next stay begins."""
    record: Row | None = None
    """Record of the current stay, or None if the process is away."""
    newest: int = 0
    """Newest round that it has landed in this stay; at first, the newest that any process had landed before that."""
    joined: int = 0
    """First round in which a payload of this process was counted in this stay."""
    progress_s: float = 0.0
    """time.monotonic() at its start, or when it last landed a round."""
    leaves_s: float = math.inf
    """time.monotonic() when it got the signal to leave; infinite before that."""

    def command(self, initial_peers: Iterable[str]) -> list[str]:
        """Return the command that a user would type: the host's, or join with the address of a running peer."""
        own = [*OWN, f"run_dir={self.folder}"]
        if self.index == 0:
            host = ["host", "--name", "churn", "--port", str(self.port), *HOST, *self.options]
            words = [*host, *own]
        else:
            words = ["join", *initial_peers, "--yes", *own]
        return [sys.executable, "-m", "outerloop", *words, "--host", "127.0.0.1"]

    def environment(self) -> dict[str, str]:
        """Return the environment unchanged: these processes do not misbehave."""
        return dict(os.environ)

    def plan_next(self, now_s: float) -> None:
        """Plan the next stay. now_s: seconds since the start of the run."""
        self.stay = next(self.stays, None)
        self.starts_s = now_s + (self.stay.away_s if self.stay else 0.0)

    def last_lines(self) -> list[str]:
        """Return the last lines that the process printed."""
        return self.folder.with_suffix(".txt").read_text(errors="replace").splitlines()[-LINES:]


class ChurnSwarm(Swarm):
    """All processes of one run.

    Args:
        folder: parent of the run directories; it is emptied first.
        plan: the stays of each process (churn_plan.py). The host arrives first.
        arrivals_end_s: processes do not arrive later than this, in seconds since the start of the run.
        kill_every: every `kill_every`-th departure is by SIGKILL, all others are by SIGINT; 0: all are by SIGINT.
        options: settings of the run, for `outerloop host`.
        patience_s: abort the run after this many seconds without a landed round.
        seed: seed of the random choice of the peer whose address a new process gets.
    """

    def __init__(
        self,
        folder: Path,
        *,
        plan: Sequence[Iterator[Stay]],
        options: list[str],
        patience_s: float,
        seed: int,
        arrivals_end_s: float = math.inf,
        kill_every: int = 0,
    ) -> None:
        super().__init__(
            folder, workers=0, rounds=0, options=[], faults=[], every_s=0.0, patience_s=patience_s, seed=seed
        )
        self.visitors = [Visitor(i, folder / f"m{i}", options, stays=stays) for i, stays in enumerate(plan)]
        self.machines = [*self.visitors]
        self.arrivals_end_s, self.kill_every, self.departures = arrivals_end_s, kill_every, 0
        self.began_s = self.printed_s = time.monotonic()
        self.counted: dict[int, int] = {}
        """Round -> number of payloads that it counted."""
        self.stays: list[Row] = []
        self.survivors: list[int] = []
        """Numbers of the processes that took part when the run ended."""
        self.aborted = ""

    def run_until(self, until: Callable[[], bool]) -> None:
        """Start the host, then follow the plan until `until` holds, and end all processes with SIGINT.

        If no round lands for `patience_s` seconds, put the reason into `aborted`, and end the run.
        """
        for visitor in self.visitors:
            visitor.plan_next(0.0)
        self.admit(self.visitors[0])
        self.until(lambda: bool(self.first_seen), limit_s=600)
        self.began_s = time.monotonic()
        try:
            while not until():
                self.step()
        except TimeoutError as error:
            self.aborted = str(error)
        self.survivors = [one.index for one in self.visitors if one.record and one.record["joined_after_s"] is not None]
        self.end()

    @property
    def now_s(self) -> float:
        """Return the seconds since the host landed its first round."""
        return time.monotonic() - self.began_s

    def step(self) -> None:
        """Follow the swarm for POLL_S. Raises TimeoutError if no round has landed for `patience_s`."""
        self.look()
        for visitor in self.visitors:
            self.manage(visitor)
        if time.monotonic() - max(self.first_seen.values()) > self.patience_s:
            raise TimeoutError(f"no round landed for {self.patience_s:g} s; see {self.folder}")
        if time.monotonic() - self.printed_s >= PROGRESS_S:
            self.printed_s = time.monotonic()
            print(self.progress(), flush=True)
        time.sleep(POLL_S)

    def look(self) -> None:
        """Record when each round first landed, how many payloads it counted, and the progress of each process."""
        for visitor in self.visitors:
            for row in visitor.poll():
                if row["event"] == "round" and not row["failed"]:
                    self.first_seen.setdefault(row["round"], row["seen"])
                    self.counted.setdefault(row["round"], row["peers"])
                    self.record_progress(visitor, row)

    def record_progress(self, visitor: Visitor, row: Row) -> None:
        """Record that a process has landed a round. Rows that it wrote before its current stay are ignored."""
        if visitor.record and row["round"] > visitor.newest:
            visitor.newest, visitor.progress_s = row["round"], time.monotonic()
            if row["took_part"] and visitor.record["joined_after_s"] is None:
                visitor.record["joined_after_s"] = round(self.now_s - visitor.record["start_s"], 1)
                visitor.joined = row["round"]

    def manage(self, visitor: Visitor) -> None:
        """Start a process or make it leave as planned, or record that it has ended or is stuck."""
        if visitor.record is None:
            if visitor.stay and visitor.starts_s <= self.now_s <= self.arrivals_end_s:
                self.admit(visitor)
        elif visitor.ended:
            self.record_end(visitor)
        elif visitor.leaves_s < math.inf:
            if time.monotonic() - visitor.leaves_s > LEAVE_S:
                self.mark_stuck(visitor, "did not leave")
                visitor.signal(signal.SIGKILL)
        elif self.is_over(visitor) and self.can_spare(visitor):
            self.departures += 1
            self.dismiss(visitor, killed=is_killed(self.departures, kill_every=self.kill_every))
        elif max(self.first_seen.values()) > visitor.progress_s + STUCK_S:
            self.mark_stuck(visitor, "stuck")

    def admit(self, visitor: Visitor) -> None:
        """Start a process. It joins by the address of a random process that took part in the last rounds."""
        running = self.present() or [one for one in self.visitors if one.record and one.address]
        peers = [self.random.choice(running).address or ""] if running else []
        visitor.record = {
            "process": visitor.index,
            "start_s": round(self.now_s, 1),
            "joined_after_s": None,
            "signal": "",
            "alive_s": None,
            "leaving_s": None,
            "exit": None,
            "unplanned": [],
            "stuck": False,
            "left": len(visitor.processes()),
        }
        self.stays.append(visitor.record)
        visitor.newest = max(self.first_seen, default=0)
        visitor.progress_s, visitor.leaves_s = time.monotonic(), math.inf
        self.note("join", visitor)
        visitor.start(peers)

    def is_over(self, visitor: Visitor) -> bool:
        """Return whether the planned time of the process's stay is over."""
        assert visitor.record and visitor.stay
        joined_after_s = visitor.record["joined_after_s"]
        if joined_after_s is None:
            return False
        return self.now_s >= visitor.record["start_s"] + joined_after_s + visitor.stay.alive_s

    def can_spare(self, visitor: Visitor) -> bool:
        """Return whether the other processes that certainly vote are a majority of the last round's roster.

        A newcomer enters the roster some rounds after its first counted payload, because a roster grows by less than
        its own size in a round. So a newcomer is certain to vote only SETTLED_ROUNDS after that payload.
        """
        last = max(self.landed(), key=lambda row: row["round"])
        others = [one for one in self.present() if one is not visitor and one.newest >= one.joined + SETTLED_ROUNDS]
        return len(others) > last["alive"] // 2

    def present(self) -> list[Visitor]:
        """Return the processes that took part in one of the last two rounds and have not got a signal to leave."""
        return [one for one in self.visitors if one.record and one.leaves_s == math.inf and self.trains(one)]

    def dismiss(self, visitor: Visitor, *, killed: bool) -> None:
        """Make a process leave: with SIGINT to its command, or with SIGKILL to all of its processes at once."""
        assert visitor.record
        visitor.leaves_s = time.monotonic()
        visitor.record |= {
            "signal": "kill" if killed else "interrupt",
            "alive_s": round(self.now_s - visitor.record["start_s"], 1),
        }
        self.note(visitor.record["signal"], visitor)
        if killed:
            visitor.signal(signal.SIGKILL)
        else:
            visitor.interrupt()

    def record_end(self, visitor: Visitor) -> None:
        """Record the exit of a process, and its last lines of output if its exit code is not the expected one."""
        assert visitor.record and visitor.process
        code = visitor.process.returncode
        if visitor.leaves_s < math.inf:
            visitor.record["leaving_s"] = round(time.monotonic() - visitor.leaves_s, 1)
        visitor.record["exit"] = code
        if code != {"interrupt": 130, "kill": -signal.SIGKILL}.get(visitor.record["signal"]):
            visitor.record["unplanned"] = visitor.last_lines()
            self.note(f"ended with exit {code}", visitor)
        visitor.record = None
        visitor.plan_next(self.now_s)

    def mark_stuck(self, visitor: Visitor, how: str) -> None:
        """Record, once in a stay, that a process is stuck."""
        assert visitor.record
        if not visitor.record["stuck"]:
            visitor.record["stuck"] = True
            self.note(how, visitor)

    def end(self) -> None:
        """Send SIGINT to all processes at once, wait until they have ended, and kill those that have not."""
        for visitor in self.visitors:
            if visitor.record and visitor.leaves_s == math.inf:
                self.dismiss(visitor, killed=False)
        while any(visitor.record for visitor in self.visitors):
            self.look()
            for visitor in self.visitors:
                if visitor.record:
                    self.manage(visitor)
            time.sleep(POLL_S)
        self.look()

    def progress(self) -> str:
        """Return one line about the state of the run."""
        seen = sorted(self.first_seen.values())
        longest_s = max((b - a for a, b in pairwise(seen)), default=0.0)
        last, running = max(self.first_seen), sum(one.record is not None for one in self.visitors)
        return (
            f"{self.now_s / 60:.1f} min: round {last} counted {self.counted[last]} payloads,"
            f" {sum(self.counted.values())} in total; {running} processes run, {len(self.present())} take part; last"
            f" round {time.monotonic() - seen[-1]:.0f} s ago, longest gap {longest_s:.1f} s"
        )
