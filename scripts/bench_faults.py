"""A swarm under fire: workers are killed, frozen and interrupted for as long as they train, and what that costs.

    .venv/bin/python scripts/bench_faults.py --runs FOLDER --json FILE [--workers 6] [--rounds 400] [--every 20]
        [--seed 0] [--faults kill,freeze,interrupt] [option=value ...]

Every worker is an `outerloop train workers=1 exchange.peers=N` of its own, as on a machine of its own, on loopback.
About every `every` seconds, drawn from the seed, one of them suffers a fault:

    kill        SIGKILL to all of its processes at once, as when the power fails; started again 2 to 10 s later
    freeze      SIGSTOP to all of its processes for 5 to 40 s, then SIGCONT
    interrupt   Ctrl-C; started again 2 to 10 s later

At least a majority is always left alone. Faults stop a minute before the end, then all finish. First a shorter run
without faults (--calm FILE takes one that was measured already). The learning rate stays constant, so that losses can
be compared at equal contributed tokens: the sum over rounds of those who took part.

FILE holds one record: when which fault hit whom, when each round was first landed by anybody, the longest wait, what
each fault cost the others, the hashes that all ended with, the losses, and what was left behind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

POLL_S = 0.2
CALM_S = 60
"""Without faults, at the end: who is down must be back before the others have finished and left."""
COMMON = ["exchange=swarm_gather", "workers=1", "inner.lr_floor=1.0", "threads=1", "log_every=1000000"]
Row = dict[str, Any]


def processes_of(marker: str) -> set[int]:
    """Everything that runs with this text in its command line, and all its descendants."""
    parents, found = {}, set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, fields = int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if fields[0] != "Z" and pid != os.getpid():
            parents[pid] = int(fields[1])
            if marker in command and "bench_faults" not in command:
                found.add(pid)
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


@dataclass
class Machine:
    """One worker with its run directory, and what it has told so far."""

    index: int
    folder: Path
    options: list[str]
    port: int
    process: subprocess.Popen[bytes] | None = None
    read: int = 0
    rows: list[Row] = field(default_factory=list)
    down_until: float = 0.0
    frozen: set[int] = field(default_factory=set)

    def start(self, initial_peers: Iterable[str]) -> None:
        """Its command; what it prints goes to a file beside its run directory."""
        peers = ",".join(initial_peers)
        command = [sys.executable, "-m", "outerloop", "train", *COMMON, *self.options]
        command += [f"run_dir={self.folder}", f"exchange.port={self.port}", f"exchange.initial_peers=[{peers}]"]
        self.read = 0
        with self.folder.with_suffix(".txt").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def poll(self) -> list[Row]:
        """Rows that came since, with the time at which they were seen."""
        try:
            text = (self.folder / "metrics.jsonl").read_bytes()
        except FileNotFoundError:
            return []
        if len(text) < self.read:  # a run that goes on begins the file anew, with its earlier rows
            self.read = 0
        whole = text[self.read : text.rfind(b"\n") + 1] if b"\n" in text[self.read :] else b""
        self.read += len(whole)
        new = [json.loads(line) | {"seen": time.monotonic()} for line in whole.splitlines()]
        self.rows += new
        return new

    @property
    def address(self) -> str | None:
        """Where others find it, once it has told."""
        told = [row for row in self.rows if row["event"] == "address"]
        return told[-1]["addresses"][0] if told else None

    @property
    def finished(self) -> bool:
        return (self.folder / "summary.json").exists() and self.process is not None and self.process.poll() is not None

    def signal(self, number: int) -> set[int]:
        """To all of its processes at once."""
        pids = processes_of(f"run_dir={self.folder}")
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        return pids


class Swarm:
    """All machines of one run, its rounds and its faults, from the first start to the last finish."""

    def __init__(self, folder: Path, args: argparse.Namespace, *, faults: list[str]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        options = [f"exchange.peers={args.workers}", f"rounds={args.rounds}", *args.options]
        self.machines = [Machine(i, folder / f"m{i}", options, free_port()) for i in range(args.workers)]
        self.args, self.kinds, self.random = args, faults, random.Random(args.seed)
        self.first_seen: dict[int, float] = {}
        self.events: list[Row] = []
        self.next_fault = float("inf")

    def run(self) -> None:
        """Start all, inject faults, follow until all have finished. Raises TimeoutError when nothing goes on."""
        self.machines[0].start([])
        self.until(lambda: self.machines[0].address is not None, limit_s=120)
        for machine in self.machines[1:]:
            machine.start([self.machines[0].address or ""])
        self.until(lambda: bool(self.first_seen), limit_s=300)
        self.next_fault = time.monotonic() + self.args.every
        while not all(machine.finished for machine in self.machines):
            self.look()
            self.recover()
            self.strike()
            if time.monotonic() - max(self.first_seen.values()) > self.args.patience:
                raise TimeoutError(f"nothing for {self.args.patience:g} s; see {self.machines[0].folder.parent}")
            time.sleep(POLL_S)

    def until(self, condition: Any, *, limit_s: float) -> None:
        ends = time.monotonic() + limit_s
        while not condition():
            self.look()
            if time.monotonic() > ends:
                raise TimeoutError(f"the swarm did not start in {limit_s:g} s")
            time.sleep(POLL_S)

    def look(self) -> None:
        """When each round was first landed by anybody."""
        for machine in self.machines:
            for row in machine.poll():
                if row["event"] == "round" and not row["failed"]:
                    self.first_seen.setdefault(row["round"], row["seen"])

    def recover(self) -> None:
        """What was frozen goes on, what is down starts again, and so does what ended by itself unfinished."""
        now = time.monotonic()
        for machine in self.machines:
            if machine.down_until > now:
                continue
            if machine.frozen:
                for pid in machine.frozen & processes_of(f"run_dir={machine.folder}"):
                    os.kill(pid, signal.SIGCONT)
                machine.frozen = set()
                self.note("thawed", machine)
            elif not machine.finished and machine.process is not None and machine.process.poll() is not None:
                self.note(f"started again after exit {machine.process.returncode}", machine)
                machine.start(other.address for other in self.machines if other is not machine and other.address)

    def strike(self) -> None:
        """The next fault, when it is time and a majority would be left."""
        now = time.monotonic()
        if not self.kinds or now < self.next_fault or self.left_s() < CALM_S:
            return
        self.next_fault = now + self.random.uniform(0.75, 1.25) * self.args.every
        whole = [machine for machine in self.machines if self.trains(machine)]
        kind, victim = self.random.choice(self.kinds), self.random.choice(self.machines)
        if victim not in whole or len(whole) - 1 <= len(self.machines) // 2:
            self.note(f"spared from {kind}", victim)
            return
        self.note(kind, victim)
        if kind == "kill":
            victim.signal(signal.SIGKILL)
        elif kind == "freeze":
            victim.frozen = victim.signal(signal.SIGSTOP)
        elif victim.process is not None:
            victim.process.send_signal(signal.SIGINT)
        victim.down_until = now + (self.random.uniform(5, 40) if kind == "freeze" else self.random.uniform(2, 10))

    def left_s(self) -> float:
        """Seconds to the end at the pace of the last rounds."""
        seen = [self.first_seen[number] for number in sorted(self.first_seen)[-20:]]
        usual = statistics.median(b - a for a, b in pairwise(seen)) if len(seen) > 1 else 0.0
        return usual * (self.args.rounds - max(self.first_seen))

    def trains(self, machine: Machine) -> bool:
        """Whether it is up and has landed one of the last rounds."""
        rounds = [row["round"] for row in machine.rows[-200:] if row["event"] == "round" and not row["failed"]]
        return machine.down_until < time.monotonic() and bool(rounds) and max(rounds) >= max(self.first_seen) - 2

    def note(self, kind: str, machine: Machine) -> None:
        began = min(self.first_seen.values(), default=time.monotonic())
        self.events.append({"s": round(time.monotonic() - began, 1), "kind": kind, "machine": machine.index})
        self.events[-1]["round"] = max(self.first_seen, default=0)
        print(json.dumps(self.events[-1]), flush=True)

    def report(self) -> Row:
        """The record of this run."""
        began, rounds = min(self.first_seen.values()), sorted(self.first_seen)
        seconds = [self.first_seen[r] - began for r in rounds]
        gaps = [b - a for a, b in pairwise(seconds)]
        return {
            "workers": len(self.machines),
            "rounds": self.args.rounds,
            "minutes": seconds[-1] / 60,
            "round_s_median": statistics.median(gaps),
            "round_s_longest": max(gaps),
            "events": self.events,
            "round_seen_s": [round(s, 2) for s in seconds],
            "fault_costs_s": self.costs(gaps, seconds),
            "slow_hashes": sorted({hash for machine in self.machines for hash in last_hash(machine)}),
            "hashes_by_round_differ": self.differing(),
            "contributed": self.contributed(),
            "losses": [losses(machine) for machine in self.machines],
        }

    def costs(self, gaps: list[float], seconds: list[float]) -> Row:
        """By kind of fault: how much longer than the median the round took that it fell into."""
        usual, costs = statistics.median(gaps), {}
        for event in self.events:
            if event["kind"] in ("kill", "freeze", "interrupt"):
                after = next((i for i, s in enumerate(seconds) if s > event["s"]), None)
                if after:
                    costs.setdefault(event["kind"], []).append(round(gaps[after - 1] - usual, 2))
        return costs

    def differing(self) -> list[int]:
        """Rounds after which two machines told different hashes of their slow weights."""
        seen: dict[int, set[str]] = {}
        for machine in self.machines:
            for row in machine.rows:
                if row["event"] == "round" and not row["failed"]:
                    seen.setdefault(row["round"], set()).add(row["slow_hash"])
        return sorted(number for number, hashes in seen.items() if len(hashes) > 1)

    def contributed(self) -> list[int]:
        """Payloads that took part, summed up to each round."""
        peers = {row["round"]: row["peers"] for m in self.machines for row in m.rows if row["event"] == "round"}
        total, sums = 0, []
        for number in sorted(self.first_seen):
            total += peers.get(number, 0)
            sums.append(total)
        return sums


def last_hash(machine: Machine) -> list[str]:
    """What its summary says."""
    return json.loads((machine.folder / "summary.json").read_text())["slow_hash"]


def losses(machine: Machine) -> dict[int, float]:
    """Validation loss by round."""
    return {row["round"]: row["val_loss"] for row in machine.rows if row["event"] == "validation"}


def loss_at(record: Row, contributed: int) -> float:
    """Mean over machines of the loss when so many payloads had taken part, between the evaluations around it."""
    curve = {}
    for number, loss in ((int(n), loss) for table in record["losses"] for n, loss in table.items()):
        if number:
            curve.setdefault(record["contributed"][min(number, len(record["contributed"])) - 1], []).append(loss)
    points = sorted((at, statistics.mean(values)) for at, values in curve.items())
    before = max((p for p in points if p[0] <= contributed), default=points[0])
    after = min((p for p in points if p[0] >= contributed), default=points[-1])
    share = (contributed - before[0]) / (after[0] - before[0]) if after[0] > before[0] else 0.0
    return before[1] + share * (after[1] - before[1])


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def left_behind(folder: Path) -> Row:
    """Processes that name the folder, folders of sockets, shared memory; counted after a pause."""
    time.sleep(3)
    return {
        "processes": len(processes_of(str(folder))),
        "socket_folders": len(list(Path("/tmp").glob("outerloop-swarm-*"))),
        "shared_memory": len(list(Path("/dev/shm").iterdir())) if Path("/dev/shm").exists() else 0,
    }


def measured(folder: Path, args: argparse.Namespace, *, faults: list[str]) -> Row:
    """One run; nothing of it stays, however it ends."""
    swarm = Swarm(folder, args, faults=faults)
    before = left_behind(folder)
    try:
        swarm.run()
        return swarm.report() | {"left_behind": left_behind(folder), "there_before": before}
    finally:
        for machine in swarm.machines:
            machine.signal(signal.SIGCONT)
            machine.signal(signal.SIGKILL)


def main() -> None:
    """The calm run, the run under fire, and what the difference is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--calm", type=Path, metavar="FILE", help="the record of a run without faults")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--calm-rounds", type=int, default=150, help="of the run without faults")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two faults")
    parser.add_argument("--patience", type=float, default=180.0, help="seconds without a round that end the run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=lambda text: text.split(","), default=["kill", "freeze", "interrupt"])
    parser.add_argument("options", nargs="*")
    args = parser.parse_intermixed_args()
    folder = args.runs.absolute()
    short = argparse.Namespace(**vars(args) | {"rounds": args.calm_rounds})
    calm = json.loads(args.calm.read_text())["calm"] if args.calm else measured(folder / "calm", short, faults=[])
    args.json.write_text(json.dumps({"calm": calm}, indent=1) + "\n")
    fire = measured(folder / "fire", args, faults=args.faults)
    at = min(fire["contributed"][-1], calm["contributed"][-1])
    fire |= {"loss": loss_at(fire, at), "calm_loss": loss_at(calm, at), "compared_at": at, "seed": args.seed}
    args.json.write_text(json.dumps({"calm": calm, "fire": fire}, indent=1) + "\n")
    shown = ("minutes", "round_s_median", "round_s_longest", "fault_costs_s", "slow_hashes", "hashes_by_round_differ")
    for key in (*shown, "loss", "calm_loss", "left_behind", "there_before"):
        print(f"{key}: {fire[key]}")


if __name__ == "__main__":
    main()
