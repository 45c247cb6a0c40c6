"""Measure the page of `outerloop watch`: first paint, bytes, delay of an update, long tasks, memory and CPU.

    python scripts/bench_watch.py [--peers 8 500] [--seconds 30] [--json FILE]

Needs a chromium (Debian: apt-get install chromium) and playwright. A run directory with as many workers is written to a
temporary folder, and grows by one step of each worker a second while the page is open. Peer ids, losses and speeds are
random, so that they compress no better than those of a real run. The page is opened once the server has read the run.
Memory and CPU are those of the server process; the browser's are not counted. Bytes are those on the wire, headers and
compression included.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import yaml

H, ROUND_S, TOKENS = 10, 5.0, 256
BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
READY = "document.querySelectorAll('#peers-table tbody tr').length"
OBSERVE = """
window.longest = 0;
new PerformanceObserver((list) => {
  for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration);
}).observe({ type: "longtask", buffered: true });
"""


class GrowingRun:
    """A run directory with `peers` workers and 50 landed rounds, to which rows are added."""

    def __init__(self, folder: Path, peers: int) -> None:
        self.folder, self.peers, self.step, self.round = folder, peers, 0, 0
        self.random = random.Random(peers)
        folder.mkdir()
        settings = {"recipe": "sparseloco", "workers": peers, "rounds": 1000, "schedule": {"sync_every": H}}
        (folder / "config.yaml").write_text(yaml.safe_dump({**settings, "inner": {"seq_len": 128}}))
        self.file = (folder / "metrics.jsonl").open("a", buffering=1)
        for worker in range(peers):
            name = f"{worker:03d}-12D3KooW{''.join(self.random.choices(BASE58, k=44))}"
            self.write(worker, "ready", params=1_000_000, size=peers, peer=name)
        for _ in range(50):
            self.step += H - 1
            self.add_step()
            self.add_round()

    def write(self, worker: int, event: str, **fields: Any) -> None:
        """Append one row."""
        wall_s = ROUND_S * self.step / H
        self.file.write(
            json.dumps({"event": event, "worker": worker, "step": self.step, **fields, "wall_s": wall_s}) + "\n"
        )

    def add_step(self) -> None:
        """Append an inner step of every worker."""
        self.step += 1
        for worker in range(self.peers):
            loss, rate = self.random.gauss(5.0, 0.2), self.random.uniform(1000.0, 1100.0)
            self.write(worker, "step", loss=loss, lr=1e-3, tokens=TOKENS * self.step, tokens_per_s=rate)

    def add_round(self) -> None:
        """Append a round of every worker, and a validation."""
        self.round += 1
        spent = {"compute_s": 4.0, "communication_s": 0.5, "others_s": 0.5, "launch_s": 0.1, "land_s": 0.2}
        seen = {"peers": self.peers, "alive": self.peers, "expected": self.peers, "took_part": True, "refused": 0}
        for worker in range(self.peers):
            wait_s = self.random.uniform(0.0, 1.0)
            size = {"payload_bytes": 10_000, "bytes_sent": 30_000 * self.round}
            self.write(worker, "round", round=self.round, fragment=0, failed="", wait_s=wait_s, **spent, **seen, **size)
        self.write(0, "validation", round=self.round, val_loss=5.0, tokens=TOKENS * self.step * self.peers)


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process in seconds, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    """Return the largest resident memory of a process so far, in MB (1e6 bytes)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM"))


def wait_until_read(url: str) -> None:
    """Wait until the server has read the whole run once."""
    while True:
        try:
            urllib.request.urlopen(f"{url}status.json").close()
            return
        except urllib.error.HTTPError:
            time.sleep(0.2)


class CountingRelay:
    """Forwards connections to a server on this machine, and counts the bytes that the server sends."""

    def __init__(self, port: int) -> None:
        self.total, self.target = 0, ("127.0.0.1", port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def url(self) -> str:
        """Return the address of the page through the relay."""
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}/"

    def accept(self) -> None:
        """Connect every client to the server."""
        while True:
            client, server = self.listener.accept()[0], socket.create_connection(self.target)
            threading.Thread(target=self.copy, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self.copy, args=(server, client, True), daemon=True).start()

    def copy(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        """Forward one direction until it ends."""
        with suppress(OSError):
            while piece := source.recv(1 << 16):
                self.total += len(piece) if counted else 0
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)


def update_delays_s(page: Any, run: GrowingRun, count: int = 5) -> list[float]:
    """Return the seconds from writing a step until the page shows it, `count` times."""
    delays = []
    for _ in range(count):
        run.add_step()
        began_s, wanted = time.monotonic(), f"{run.step:,} of"
        while wanted not in page.inner_text("#facts"):
            page.wait_for_timeout(20)
        delays.append(time.monotonic() - began_s)
    return delays


def measure(browser: Any, run: GrowingRun, url: str, pid: int, seconds: float) -> dict[str, float]:
    """Open the page, let the run grow, and return the measurements."""
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.add_init_script(OBSERVE)
    wait_until_read(url)
    relay = CountingRelay(int(url.rstrip("/").rpartition(":")[2]))
    page.goto(relay.url)
    while page.evaluate(READY) < run.peers:
        page.wait_for_timeout(50)
    first_bytes, opened_s = relay.total, time.monotonic()
    paint_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    delays = update_delays_s(page, run)
    began_s, used_s = time.monotonic(), cpu_s(pid)
    while time.monotonic() < began_s + seconds:
        run.add_step()
        if run.step % H == 0:
            run.add_round()
        page.wait_for_timeout(1000)
    share = (cpu_s(pid) - used_s) / (time.monotonic() - began_s)
    return {
        "peers": run.peers,
        "first paint [ms]": paint_ms,
        "bytes until all is shown [kB]": first_bytes / 1000,
        "bytes per second after that [kB/s]": (relay.total - first_bytes) / (time.monotonic() - opened_s) / 1000,
        "update delay, median [s]": median(delays),
        "update delay, longest [s]": max(delays),
        "longest task in the browser [ms]": page.evaluate("window.longest"),
        "server memory [MB]": memory_mb(pid),
        "server CPU [% of a core]": 100 * share,
    }


def main() -> None:
    """Measure each number of peers and print one table."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, nargs="+", default=[8, 500])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", type=Path, help="file to which the measurements are written")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for peers in options.peers:
            run = GrowingRun(Path(folder) / str(peers), peers)
            command = [sys.executable, "-m", "outerloop", "watch", str(run.folder), "--port", "0"]
            server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            try:
                assert server.stdout is not None
                url = server.stdout.readline().split()[1]
                results.append(measure(browser, run, url, server.pid, options.seconds))
            finally:
                server.terminate()
                server.wait()
        browser.close()
    for name in results[0]:
        print(f"{name:36}" + "".join(f"{result[name]:12.4g}" for result in results))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
