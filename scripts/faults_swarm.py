"""Run the swarm of bench_faults.py: start its machines, follow its rounds and inject faults until all have finished."""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from faults_deck import LASTS_S, MISBEHAVIOURS, Deck
from faults_machine import Machine, Row

POLL_S = 0.2
LEAVES_S = 10
"""Extra seconds for a machine that has not exited when it should have."""
CALM_S = 60
"""Seconds without faults at the end, so that a machine that is down returns before the others finish and leave."""


class Swarm:
    """All machines of one run.

    Args:
        folder: parent of the run directories; it is emptied first.
        workers, rounds, options: settings of the training run.
        faults: kinds of faults; an empty list means no faults. About every `every_s` seconds, a fault drawn with `seed`
            hits a machine.
        patience_s: abort the run after this many seconds without a landed round.
        joins: number of machines that may join late.
    """

    def __init__(
        self,
        folder: Path,
        *,
        workers: int,
        rounds: int,
        options: list[str],
        faults: list[str],
        every_s: float,
        patience_s: float,
        seed: int,
        joins: int = 0,
    ) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        options = [f"exchange.peers={workers}", f"rounds={rounds}", *options]
        self.machines = [Machine(i, folder / f"m{i}", options) for i in range(workers)]
        self.folder, self.rounds, self.faults = folder, rounds, faults
        self.options, self.joins_left = options, joins
        self.every_s, self.patience_s, self.random = every_s, patience_s, random.Random(seed)
        self.deck, self.due = Deck(faults, self.random), ""
        self.first_seen: dict[int, float] = {}
        self.events: list[Row] = []
        self.next_fault = float("inf")

    def run(self) -> None:
        """Start all machines, inject faults, and follow the swarm until all machines have finished.

        Raises TimeoutError if the swarm stops making progress.
        """
        self.form()
        self.next_fault = time.monotonic() + self.every_s
        while not all(machine.finished for machine in self.machines):
            self.step()

    def form(self) -> None:
        """Start all machines, and follow the swarm until the first round has landed.

        Raises TimeoutError if this takes too long.
        """
        self.machines[0].start([])
        self.until(lambda: self.machines[0].address is not None, limit_s=120)
        for machine in self.machines[1:]:
            machine.start([self.machines[0].address or ""])
        self.until(lambda: bool(self.first_seen), limit_s=300)

    def step(self) -> None:
        """Follow the swarm for POLL_S. Raises TimeoutError if no round has landed for `patience_s`."""
        self.look()
        for machine in self.machines:
            self.recover(machine)
        self.strike()
        if time.monotonic() - max(self.first_seen.values()) > self.patience_s:
            raise TimeoutError(f"no round landed for {self.patience_s:g} s; see {self.folder}")
        time.sleep(POLL_S)

    def until(self, condition: Callable[[], bool], *, limit_s: float) -> None:
        """Follow the swarm until the condition holds. Raises TimeoutError after `limit_s`."""
        ends = time.monotonic() + limit_s
        while not condition():
            self.look()
            if time.monotonic() > ends:
                raise TimeoutError(f"the swarm did not start in {limit_s:g} s; see {self.folder}")
            time.sleep(POLL_S)

    def look(self) -> None:
        """Record the time at which each round first landed on any machine."""
        for machine in self.machines:
            for row in machine.poll():
                if row["event"] == "round" and not row["failed"]:
                    self.first_seen.setdefault(row["round"], row["seen"])

    def recover(self, machine: Machine) -> None:
        """End a machine's fault if its time is over: resume the machine, end its misbehaviour, or restart it."""
        if machine.down_until > time.monotonic():
            return
        if machine.frozen:
            machine.thaw()
            self.note("thawed", machine)
        elif machine.misbehaves:
            machine.misbehave("")
            self.note("behaves again", machine)
        elif machine.ended and not machine.finished:
            assert machine.process
            what = "started again" if machine.suffered else "crashed, started again"
            self.note(f"{what} after exit {machine.process.returncode}", machine)
            machine.start(self.addresses(machine))
        elif machine.suffered and not machine.ended:
            self.note(f"outlived {machine.suffered}", machine)
            machine.down_until = time.monotonic() + LEAVES_S

    def strike(self) -> None:
        """Inject the next fault if it is due and leaves enough machines unharmed."""
        now = time.monotonic()
        if not self.faults or now < self.next_fault or self.left_s() < CALM_S:
            return
        self.due = self.due or self.deck.draw()
        if self.due == "join" and not self.joins_left:
            self.due = "kill"
        whole = [machine for machine in self.machines if self.trains(machine)]
        if not self.enough(len(whole) - 1):
            return
        self.next_fault = now + self.random.uniform(0.75, 1.25) * self.every_s
        kind, self.due = self.due, ""
        if kind == "join":
            self.join()
        else:
            self.befall(self.random.choice(whole), kind)

    def join(self) -> None:
        """Start one more machine, which stays in the run to the end."""
        self.joins_left -= 1
        new = Machine(len(self.machines), self.folder / f"m{len(self.machines)}", self.options)
        self.note("join", new)
        new.start(self.addresses(new))
        self.machines.append(new)

    def befall(self, victim: Machine, kind: str) -> None:
        """Inject a fault into a machine, and draw the time at which it ends."""
        self.note(kind, victim)
        if kind == "freeze":
            victim.frozen = victim.signal(signal.SIGSTOP)
        elif kind in MISBEHAVIOURS:
            victim.misbehave(kind)
        elif kind == "kill":
            victim.signal(signal.SIGKILL)
        else:
            victim.interrupt()
        victim.suffered = kind if kind in ("kill", "interrupt") else ""
        victim.down_until = time.monotonic() + self.random.uniform(*LASTS_S[kind])

    def addresses(self, of: Machine) -> list[str]:
        """Return the known addresses of all machines other than `of`."""
        return [other.address for other in self.machines if other is not of and other.address]

    def left_s(self) -> float:
        """Return the estimated seconds to the end of the run if no more faults occur.

        Each remaining round is assumed to be as fast as the fastest tenth of the last 100 rounds.
        """
        seen = [self.first_seen[number] for number in sorted(self.first_seen)[-100:]]
        intervals = sorted(b - a for a, b in pairwise(seen))
        return intervals[len(intervals) // 10] * (self.rounds - max(self.first_seen)) if intervals else 0.0

    def enough(self, left: int) -> bool:
        """Return whether `left` machines are a majority of the last roster and at least half of all machines."""
        last = max(self.landed(), key=lambda row: row["round"])
        return left > last["alive"] // 2 and 2 * left >= len(self.machines)

    def trains(self, machine: Machine) -> bool:
        """Return whether a machine is up and took part in one of the last two rounds."""
        rounds = [row["round"] for row in self.landed(machine) if row["took_part"]]
        return machine.down_until < time.monotonic() and bool(rounds) and max(rounds) >= max(self.first_seen) - 1

    def landed(self, *machines: Machine) -> list[Row]:
        """Return the rows of recently landed rounds from these machines, by default from all machines."""
        rows = [row for machine in machines or self.machines for row in machine.rows[-200:]]
        return [row for row in rows if row["event"] == "round" and not row["failed"]]

    def note(self, kind: str, machine: Machine) -> None:
        """Record and print an event, with the seconds since the first round."""
        at_s = time.monotonic() - min(self.first_seen.values(), default=time.monotonic())
        last = max(self.first_seen, default=0)
        self.events.append({"s": round(at_s, 1), "kind": kind, "machine": machine.index, "round": last})
        print(json.dumps(self.events[-1]), flush=True)
