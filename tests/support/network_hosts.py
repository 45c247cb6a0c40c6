"""Workers that go through rounds together, each in a network namespace: what they tell, and waiting for more.

They are those of toy_worker.py: a process each with its own daemon, everything between them real, no training.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from namespaces import Network

ROOT = Path(__file__).parents[2]
OPTIONS = {"run": "r", "grace_s": 0.5, "join_timeout_s": 200.0}
Row = dict[str, Any]


@dataclass
class Host:
    """One of them. `rows`: what it has told so far."""

    index: int
    folder: Path
    process: subprocess.Popen[bytes]
    read: int = 0
    rows: list[Row] = field(default_factory=list)

    def look(self) -> None:
        """At what it has told since."""
        text = (self.folder / "events.jsonl").read_bytes()
        whole = text[self.read : text.rfind(b"\n") + 1]
        self.read += len(whole)
        self.rows += map(json.loads, whole.splitlines())

    @property
    def address(self) -> str | None:
        """Where others find it, once it has told."""
        return next((row["addresses"][0] for row in self.rows if row["event"] == "address"), None)

    @property
    def rounds(self) -> dict[int, Row]:
        """Those that it has landed."""
        return {row["round"]: row for row in self.rows if row["event"] == "round" and not row["failed"]}

    @property
    def last(self) -> int:
        return max(self.rounds, default=0)

    @property
    def said(self) -> list[str]:
        """The lines that it has told people, in order."""
        return [row["text"] for row in self.rows if row["event"] == "status"]

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def describe(self) -> str:
        last = self.rows[-1] if self.rows else "nothing"
        return f"{self.index}: round {self.last}, said {self.said[-3:]}, last told {last}"


class Hosts:
    """`near` and `far`: on either side of the cable."""

    def __init__(self, folder: Path, network: Network, *, near: int, far: int) -> None:
        self.folder, self.network, self.sides = folder, network, (near, far)
        self.all: list[Host] = []

    @property
    def near(self) -> list[Host]:
        return self.all[: self.sides[0]]

    @property
    def far(self) -> list[Host]:
        return self.all[self.sides[0] :]

    def start(self) -> None:
        """All of them; returns when each has landed two rounds."""
        first = self.spawn(0, [])
        self.until(lambda: first.address is not None, limit_s=90)
        for index in range(1, sum(self.sides)):
            self.spawn(index, [first.address or ""])
        self.until(lambda: all(host.last >= 2 for host in self.all), limit_s=240)

    def spawn(self, index: int, initial_peers: list[str]) -> Host:
        """One worker on its host. It leaves when its standard input ends."""
        folder = self.folder / f"m{index}"
        folder.mkdir()
        where = {"host": self.network.address(index), "identity_path": str(folder / "key")}
        options = OPTIONS | where | {"peers": sum(self.sides), "initial_peers": initial_peers}
        command = [sys.executable, str(ROOT / "tests/support/toy_worker.py"), json.dumps(options)]
        with (folder / "events.jsonl").open("wb") as events, (folder / "log.txt").open("wb") as log:
            process = subprocess.Popen(
                self.network.inside(index, command),
                stdin=subprocess.PIPE,
                stdout=events,
                stderr=log,
                env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            )
        self.all.append(Host(index, folder, process))
        return self.all[-1]

    def stop(self) -> None:
        """All leave; who does not in time is killed, and its daemon with it."""
        for host in self.all:
            assert host.process.stdin
            host.process.stdin.close()
        for host in self.all:
            try:
                host.process.wait(30)
            except subprocess.TimeoutExpired:
                host.process.kill()
                host.process.wait()

    def until(self, condition: Callable[[], bool], *, limit_s: float) -> float:
        """Follow until it is so; how long that took. Fails when it takes too long, or one of them ends."""
        began_s = time.monotonic()
        while not condition():
            self.look()
            took_s = time.monotonic() - began_s
            assert took_s < limit_s and not any(host.ended for host in self.all), self.describe()
            time.sleep(0.1)
        return time.monotonic() - began_s

    def wait(self, seconds: float) -> None:
        """Follow for so long."""
        ends_s = time.monotonic() + seconds
        self.until(lambda: time.monotonic() > ends_s, limit_s=seconds + 60)

    def look(self) -> None:
        for host in self.all:
            host.look()

    def agree(self) -> None:
        """No two have landed different rounds."""
        numbers = {number for host in self.all for number in host.rounds}
        assert numbers, "nobody landed a round"
        for number in numbers:
            hashes = {host.rounds[number]["slow_hash"] for host in self.all if number in host.rounds}
            assert len(hashes) == 1, f"round {number}"

    def together(self, since: int) -> bool:
        """Whether there is a later round that all have taken part in, with equal weights after it."""
        numbers = set.intersection(*(set(host.rounds) for host in self.all))
        return any(self.whole(number) for number in numbers if number > since)

    def whole(self, number: int) -> bool:
        rows = [host.rounds[number] for host in self.all]
        return {row["peers"] for row in rows} == {len(rows)} and len({row["slow_hash"] for row in rows}) == 1

    def describe(self) -> str:
        return "\n".join(host.describe() for host in self.all)
