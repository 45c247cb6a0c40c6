"""Run the swarm of attack_strangers.py and attack_liar.py: machines on an allow-list that train until they are stopped.

Every machine is a separate `outerloop train workers=1`. Its key is created in advance, so that the list is known at the
start. Each inner step takes PACE_S regardless of CPU load (wan_pace.py), so that differences in round time are due to
the network and the consensus.
"""

from __future__ import annotations

import os
import re
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from faults_machine import Machine, Row
from faults_report import differing
from faults_swarm import Swarm

from outerloop.swarm.access.identity import ensure_identity
from outerloop.swarm.access.signatures import Signatures

HERE = Path(__file__).parent
PACE_S = 0.1
TRAINING = ["recipe=sparseloco", "model=nano", "inner.seq_len=32", "inner.batch=2", "eval.every=0", "eval.sequences=16"]
TRAINING += [
    "exchange.join_timeout_s=300",
    "checkpoint.every=0",
    "inner.optimizer._target_=wan_pace.PacedAdamW",
    f"+inner.optimizer.step_s={PACE_S}",
]
ROUNDS = 1_000_000
"""More rounds than any run reaches: the scripts end a run when its time is over."""
LEAVE_S = 30.0
SAMPLE_S = 2.0
"""Seconds between two memory measurements."""


class Listed(Swarm):
    """A swarm with an allow-list. `newcomers`: number of machines on the list that are started later, with `add`."""

    def __init__(self, folder: Path, *, workers: int, options: list[str], newcomers: int = 0) -> None:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        super().__init__(
            folder, workers=workers, rounds=ROUNDS, options=[*TRAINING, *options], faults=[], every_s=0.0,
            patience_s=180.0, seed=0,
        )  # fmt: skip
        late = [Machine(i, folder / f"m{i}", self.machines[0].options) for i in range(workers, workers + newcomers)]
        self.ids = [id_of(machine) for machine in self.machines + late]
        for machine in self.machines + late:
            machine.options = [*machine.options, f"exchange.allow=[{','.join(self.ids)}]"]
        self.newcomers = late
        self.memory = Memory()
        self.next_sample = 0.0

    def follow(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> None:
        """Follow the swarm for `seconds`, or until the condition `until` holds.

        Raises TimeoutError if no round lands for `patience_s`.
        """
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and not until():
            self.step()
            if time.monotonic() >= self.next_sample:
                self.memory.look(self.machines)
                self.next_sample = time.monotonic() + SAMPLE_S

    def add(self) -> Machine:
        """Start the next newcomer and return it."""
        new = self.newcomers.pop(0)
        self.note("join", new)
        new.start(self.addresses(new))
        self.machines.append(new)
        return new

    def seconds(self, since: float = 0.0, until: float = float("inf")) -> list[float]:
        """Return the seconds between successive rounds' first landings, from `since` to `until` (time.monotonic)."""
        seen = sorted(at for at in self.first_seen.values() if since <= at < until)
        return [b - a for a, b in pairwise(seen)]

    def report(self, honest: list[Machine]) -> Row:
        """Return the record fields that all attacks share. `honest`: the machines whose states must agree."""
        rows = [row for machine in honest for row in machine.rows if row["event"] == "round" and not row["failed"]]
        return {
            "workers": len(self.machines),
            "rounds": len(self.first_seen),
            **round_times(self.seconds()),
            **self.memory.report(),
            "refused": [refused(machine) for machine in self.machines],
            "rounds_whose_hashes_differ": differing(rows),
            "last_hashes": sorted({last["slow_hash"] for last in map(last_round, honest) if last}),
            "events": self.events,
        }


@contextmanager
def running(swarm: Listed) -> Iterator[Listed]:
    """Start the swarm, and end all of its processes at the end of the block."""
    try:
        swarm.form()
        yield swarm
    finally:
        for machine in swarm.machines:
            if machine.process is not None and not machine.ended:
                machine.interrupt()
        ends = time.monotonic() + LEAVE_S
        while time.monotonic() < ends and not all(machine.ended for machine in swarm.machines if machine.process):
            time.sleep(0.2)
        for machine in swarm.machines:
            machine.signal(signal.SIGKILL)


class Memory:
    """First and peak resident memory of all processes in MiB, by role and pid."""

    def __init__(self) -> None:
        self.first: dict[tuple[str, int], float] = {}
        self.most: dict[tuple[str, int], float] = {}

    def look(self, machines: list[Machine]) -> None:
        """Measure the memory usage of all processes on these machines."""
        for pid in {pid for machine in machines for pid in machine.processes()}:
            with suppress(OSError, AttributeError):  # the process has ended
                found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
                key = role(pid), pid
                now = int(found[1]) / 1024  # type: ignore[index]
                self.first.setdefault(key, now)
                self.most[key] = max(now, self.most.get(key, 0.0))

    def report(self) -> Row:
        """Return for each role of processes the largest memory and the largest growth of a process, in MiB."""
        roles = sorted({role for role, _ in self.most})
        return {
            "rss_mib": {one: round(max(x for (of, _), x in self.most.items() if of == one)) for one in roles},
            "rss_growth_mib": {
                one: round(max(x - self.first[key] for key, x in self.most.items() if key[0] == one)) for one in roles
            },
        }


def cpu_s(machines: list[Machine]) -> float:
    """Return the CPU seconds that the running processes of these machines have used so far."""
    ticks = 0
    for pid in {pid for machine in machines for pid in machine.processes()}:
        with suppress(OSError):  # the process has ended
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])  # utime and stime
    return ticks / os.sysconf("SC_CLK_TCK")


def role(pid: int) -> str:
    """Return the role of a machine's process: p2pd, worker or train. Raises OSError if the process has ended."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    if words[0].endswith(b"p2pd"):
        return "p2pd"
    return "worker" if b"worker" in words else "train"


def id_of(machine: Machine) -> str:
    """Create the key of a machine's only worker, and return the worker's peer id."""
    return Signatures.of(ensure_identity(machine.folder / "workers/0/identity.key")).peer_id


def round_times(seconds: list[float]) -> Row:
    """Return the median, mean and maximum of these round times in seconds, each None if the list is empty."""
    if not seconds:
        return dict.fromkeys(("round_s_median", "round_s_mean", "round_s_longest"))
    found = {"median": statistics.median(seconds), "mean": statistics.mean(seconds), "longest": max(seconds)}
    return {f"round_s_{name}": round(value, 4) for name, value in found.items()}


def last_round(machine: Machine) -> Row:
    """Return the row of the last landed round in a machine's metrics, or an empty row if there is none."""
    rounds = [row for row in machine.rows if row["event"] == "round" and not row["failed"]]
    return rounds[-1] if rounds else {}


def refused(machine: Machine) -> Row:
    """Return how many messages a machine refused, and the number of refusals of each kind in its log."""
    return {
        "messages": last_round(machine).get("refused_messages", 0),
        "lines": dict(Counter(logged(machine))),
    }


def logged(machine: Machine) -> list[str]:
    """Return the kind of each refusal in the log of a machine's worker."""
    log = machine.folder / "workers/0/log.txt"
    return re.findall(r"refused \((\w+)\)", log.read_text(errors="replace")) if log.exists() else []
