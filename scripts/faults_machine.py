"""Run one machine of bench_faults.py: start its `outerloop train`, read its metrics, and inject faults."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faulty.misbehave import FILE as MISBEHAVE
from faulty.misbehave import counted

from outerloop.state import checkpoint

COMMON = ["exchange=swarm_gather", "workers=1", "inner.lr_floor=1.0", "threads=1", "log_every=1000000"]
COMMON += ["exchange.max_blob_bytes=4000000"]
FAULTY = Path(__file__).parent / "faulty"
Row = dict[str, Any]


def free_port() -> int:
    """Return a TCP port that is currently unused."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@dataclass
class Machine:
    """One machine: its process, its run directory, and the metrics rows read so far."""

    index: int
    folder: Path
    options: list[str]
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    read: int = 0
    rows: list[Row] = field(default_factory=list)
    down_until: float = 0.0
    frozen: set[int] = field(default_factory=set)
    suffered: str = ""
    """The last fault if it was "kill" or "interrupt"; empty otherwise, and after a restart."""
    misbehaves: str = ""
    sockets: set[Path] = field(default_factory=set)
    """Socket folders of the daemons that were killed or frozen."""

    def command(self, initial_peers: Iterable[str]) -> list[str]:
        """Return the command that a user would run on this machine."""
        where = [f"run_dir={self.folder}", f"exchange.port={self.port}"]
        peers = f"exchange.initial_peers=[{','.join(initial_peers)}]"
        return [sys.executable, "-m", "outerloop", "train", *COMMON, *self.options, *where, peers]

    def start(self, initial_peers: Iterable[str]) -> None:
        """Start the machine's command, and append its output to a .txt file next to the run directory."""
        self.read, self.suffered = 0, ""
        with self.folder.with_suffix(".txt").open("ab") as log, heeding_ctrl_c():
            self.process = subprocess.Popen(
                self.command(initial_peers), stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self.environment()
            )

    def environment(self) -> dict[str, str]:
        """Return an environment in which the machine's workers can be made to misbehave."""
        path = os.pathsep.join(filter(None, [str(FAULTY), os.environ.get("PYTHONPATH")]))
        return {**os.environ, "PYTHONPATH": path, MISBEHAVE: str(self._misbehaviour)}

    @property
    def _misbehaviour(self) -> Path:
        return self.folder.with_suffix(".misbehaves")

    def misbehave(self, how: str) -> None:
        """Start the misbehaviour named `how`, or end the current one if `how` is empty."""
        self.misbehaves = how
        checkpoint.write_atomically(self._misbehaviour, how.encode())

    def misbehaved(self) -> Counter[str]:
        """Return how often the machine's workers have misbehaved in each way."""
        try:
            return Counter(counted(self._misbehaviour).read_text().split())
        except FileNotFoundError:
            return Counter()

    def poll(self) -> list[Row]:
        """Return the metrics rows added since the last call, each with the time at which it was read."""
        try:
            text = (self.folder / "metrics.jsonl").read_bytes()
        except FileNotFoundError:
            return []
        if len(text) < self.read:  # a resumed run rewrites the file, including its earlier rows
            self.read = 0
        whole = text[self.read : text.rfind(b"\n") + 1]
        self.read += len(whole)
        new = [json.loads(line) | {"seen": time.monotonic()} for line in whole.splitlines()]
        self.rows += new
        return new

    @property
    def address(self) -> str | None:
        """Return the last address that the machine published, or None."""
        published = [row for row in self.rows if row["event"] == "address"]
        return published[-1]["addresses"][0] if published else None

    @property
    def ended(self) -> bool:
        """Return whether the machine's command has ended, with or without an error."""
        return self.process is not None and self.process.poll() is not None

    @property
    def finished(self) -> bool:
        """Return whether the machine has finished training."""
        return self.ended and (self.folder / "summary.json").exists()

    def interrupt(self) -> None:
        """Send Ctrl-C to the machine's command, as a terminal would."""
        assert self.process
        self.process.send_signal(signal.SIGINT)

    def signal(self, number: int) -> set[int]:
        """Send a signal to all processes of the machine at once, and return their ids."""
        pids = self.processes()
        self.sockets |= folders_of_sockets(pids)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return pids

    def thaw(self) -> None:
        """Resume the frozen processes."""
        for pid in self.frozen & self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.frozen = set()

    def processes(self) -> set[int]:
        """Return the ids of the machine's main process and all of its descendants."""
        return processes_of(lambda argument: argument == f"run_dir={self.folder}")


@contextmanager
def heeding_ctrl_c() -> Iterator[None]:
    """Let processes that are started in this block receive SIGINT, which background jobs of a shell ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def processes_of(belongs: Callable[[str], bool]) -> set[int]:
    """Return the ids of all other processes with an argument that `belongs` accepts, and of their descendants."""
    parents, found = {}, set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, fields = int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
            arguments = (stat.parent / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if fields[0] != "Z" and pid != os.getpid():
            parents[pid] = int(fields[1])
            if any(map(belongs, arguments)):
                found.add(pid)
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def folders_of_sockets(pids: Iterable[int]) -> set[Path]:
    """Return the socket folders of the daemons among these processes."""
    found = set()
    for pid in pids:
        with suppress(OSError):
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            found |= set(map(Path, re.findall(r"-listen=/unix(/[^\0]+)/p2pd\.sock", arguments)))
    return found


def left_behind(folder: Path, sockets: Iterable[Path] = ()) -> Row:
    """Wait for three seconds, then count what a run has left behind.

    Return three counts: processes with `folder` in their arguments, folders in `sockets` that still exist, and all
    shared memory segments on this computer.
    """
    time.sleep(3)
    return {
        "processes": len(processes_of(lambda argument: f"{folder}/" in f"{argument}/")),
        "socket_folders": sum(map(Path.exists, sockets)),
        "shared_memory": len(list(Path("/dev/shm").iterdir())) if Path("/dev/shm").exists() else 0,
    }
