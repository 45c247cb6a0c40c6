"""Measure how soon the page of `outerloop watch` shows what happens in a real run, and what the page costs the run.

    python scripts/bench_watch_live.py [--pairs 8] [--seconds 20] [--json FILE]

Needs a chromium (Debian: apt-get install chromium) and playwright. A run of four workers trains on this machine, each
in its own process. One page shows its run directory, another its swarm, by the address of the first worker.

    pace       steps per second of the run with a page and its server, divided by those without, measured in turns of
               --seconds: geometric mean over --pairs turns of each, in random order within a pair, with a 90 % interval
    share      CPU time of the server and the browser in these turns, as a share of all cores: the run, which uses all
               cores, can lose no more to them than this
    killed_s   seconds from SIGKILL to one worker until the page states that it is gone
    why_s      seconds until the page states which peer the round waits for, or that it continues without it
    joined_s   seconds from the start of a fifth worker on the same machine until the page of the swarm lists it
    percents   different percentages of the received state that this page showed for the fifth worker. All workers send
               at most 2 Mbit/s, so that the download takes some seconds
    reload     parts of the page of the swarm that have fewer entries after a reload
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench_watch import cpu_s, memory_mb
from seed_statistics import half_width

OUTERLOOP = [sys.executable, "-m", "outerloop"]
WAIT_S = 300.0
SETTLE_S = 4.0
GIVE_UP_S = 60.0
OPTIONS = [
    "workers=4",
    "exchange.max_mbit=2",
    "threads=1",
    "rounds=1000000",
    "eval.every=0",
    "checkpoint.every=0",
    "log_every=1",
]
PEERS = "document.querySelectorAll('#peers-table tbody tr').length"
CONTENT = f"({{ peers: {PEERS}, events: document.querySelectorAll('#events-list > *').length }})"


@contextmanager
def process(*command: str, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command within a `with` block. It is interrupted at the end."""
    with output.open("wb") as file:
        started = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        try:
            yield started
        finally:
            started.send_signal(signal.SIGINT)
            try:
                started.wait(60)
            except subprocess.TimeoutExpired:
                started.kill()
                started.wait()


def wait_for(found: Callable[[], Any], what: str) -> Any:
    """Return the first true value of `found`. Raises SystemExit after WAIT_S seconds."""
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        if value := found():
            return value
        time.sleep(0.05)
    raise SystemExit(f"{what}: not within {WAIT_S:.0f} s")


def rows(run_dir: Path, event: str) -> list[dict[str, Any]]:
    """Return the rows of an event in metrics.jsonl."""
    file = run_dir / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [row for line in lines if line.endswith("\n") and (row := json.loads(line))["event"] == event]


def steps(run_dir: Path) -> int:
    """Return the inner steps of all workers together."""
    newest: dict[int, int] = {}
    for row in rows(run_dir, "step"):
        newest[row["worker"]] = row["step"]
    return sum(newest.values())


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def workers_of(pid: int) -> dict[int, int]:
    """Return the process of each worker of `outerloop train`, by index."""
    commands = {child: Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0") for child in children(pid)}
    return {int(words[words.index("worker") + 2]): child for child, words in commands.items() if "worker" in words}


@contextmanager
def page_of(browser: Any, what: str, folder: Path) -> Iterator[tuple[Any, int]]:
    """Serve the page of a run or a swarm, and open it. Yield the page and the process of the server."""
    output = folder / f"watch-{time.monotonic_ns()}.txt"
    with process(*OUTERLOOP, "watch", what, "--port", "0", output=output) as server:
        url = wait_for(lambda: re.search(r"http://\S+", output.read_text()), "outerloop watch")[0]
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.goto(url)
        try:
            yield page, server.pid
        finally:
            page.close()


def browser_processes() -> list[int]:
    """Return all processes of the browser that this process has started."""
    found, new = [], [os.getpid()]
    while new:
        new = [child for pid in new for child in children(pid)]
        found += new
    return [pid for pid in found if "chrom" in Path(f"/proc/{pid}/comm").read_text()]


def pace(browser: Any, run_dir: Path, folder: Path, pairs: int, seconds: float) -> dict[str, float]:
    """Return the ratio of the steps per second with and without a page, with its 90 % interval."""

    def rate(watching: Sequence[int]) -> float:
        time.sleep(SETTLE_S)
        before, used_s, began_s = steps(run_dir), sum(map(cpu_s, watching)), time.monotonic()
        time.sleep(seconds)
        shares.append((sum(map(cpu_s, watching)) - used_s) / (time.monotonic() - began_s) / (os.cpu_count() or 1))
        return (steps(run_dir) - before) / (time.monotonic() - began_s)

    logs: list[float] = []
    shares: list[float] = []
    for pair in range(pairs):
        rates: dict[bool, float] = {}
        for is_open in random.Random(pair).sample([True, False], 2):
            with ExitStack() as stack:
                watching: list[int] = []
                if is_open:
                    _, server = stack.enter_context(page_of(browser, str(run_dir), folder))
                    watching = [server, *browser_processes()]
                rates[is_open] = rate(watching)
        logs.append(math.log(rates[True] / rates[False]))
        print(f"pair {pair}: {rates[True]:.2f} and {rates[False]:.2f} steps/s with and without a page", flush=True)
    mean, half = statistics.mean(logs), half_width(logs)
    pace = {"pace": math.exp(mean), "pace_low": math.exp(mean - half), "pace_high": math.exp(mean + half)}
    return pace | {"share": sum(shares) / pairs}


def server_cost(page: Any, server: int, seconds: float) -> dict[str, float]:
    """Return the memory of the server of a swarm's page, and its share of a core."""
    began_s, used_s = time.monotonic(), cpu_s(server)
    page.wait_for_timeout(1000 * seconds)
    share = (cpu_s(server) - used_s) / (time.monotonic() - began_s)
    return {"swarm server [MB]": memory_mb(server), "swarm server [% of a core]": 100 * share}


def killed(pages: dict[str, Any], victim: int, name: str) -> dict[str, float]:
    """Kill one worker, and return how soon each page shows it. `name`: short name of the worker."""
    patterns = {
        "killed_s": rf"{name}[^\n]*\n?[^\n]*\b(died|silent|left)\b",
        "why_s": rf"({name} has died|no answer from[^\n]*{name})",
    }
    os.kill(victim, signal.SIGKILL)
    began_s, found = time.monotonic(), {}
    missing = {(kind, key) for kind in pages for key in patterns}
    while missing and time.monotonic() < began_s + GIVE_UP_S:
        for kind, key in sorted(missing):
            if re.search(patterns[key], pages[kind].inner_text("body")):
                found[f"{kind} {key}"] = round(time.monotonic() - began_s, 2)
                missing.discard((kind, key))
    return found | {f"{kind} {key}": math.inf for kind, key in missing}


def joined(page: Any, address: str, folder: Path) -> dict[str, Any]:
    """Start a fifth worker, and return how soon the page lists it, and what it shows of the state that it receives."""
    before, began_s, percents = page.evaluate(PEERS), time.monotonic(), []
    listed_s = math.inf
    typed = ["workers=1", "exchange.peers=4", f"exchange.initial_peers=[{address}]", f"run_dir={folder / 'fifth'}"]
    with process(*OUTERLOOP, "train", *OPTIONS[1:], *typed, output=folder / "fifth.txt"):
        while not rows(folder / "fifth", "step") and time.monotonic() < began_s + WAIT_S:
            if page.evaluate(PEERS) > before:
                listed_s = min(listed_s, time.monotonic() - began_s)
            percents += re.findall(r"(\d+) % received", page.inner_text("body"))
            page.wait_for_timeout(200)
        arrived_s = time.monotonic() - began_s
        before_reload = page.evaluate(CONTENT)
        page.reload()
        page.wait_for_timeout(3000)
        after_reload = page.evaluate(CONTENT)
    lost = [name for name, count in before_reload.items() if after_reload[name] < count]
    return {
        "joined_s": round(listed_s, 1),
        "first_step_s": round(arrived_s, 1),
        "percents": sorted(set(map(int, percents))),
        "lost by a reload": lost,
    }


def measure(browser: Any, folder: Path, pairs: int, seconds: float) -> dict[str, Any]:
    """Start the run, and make all measurements."""
    run_dir = folder / "run"
    with process(*OUTERLOOP, "train", *OPTIONS, f"run_dir={run_dir}", output=folder / "run.txt") as run:
        wait_for(lambda: len(rows(run_dir, "round")) > 8, "rounds of the run")
        found: dict[str, Any] = pace(browser, run_dir, folder, pairs, seconds)
        [address] = [row["addresses"][0] for row in rows(run_dir, "address") if row["worker"] == 0][:1]
        victim, [name] = 2, [row["peer"] for row in rows(run_dir, "ready") if row["worker"] == 2]
        with (
            page_of(browser, str(run_dir), folder) as (of_run, _),
            page_of(browser, address, folder) as (of_swarm, server),
        ):
            wait_for(lambda: of_swarm.evaluate(PEERS) == 4, "the page of the swarm")
            of_swarm.wait_for_timeout(5000)
            found |= server_cost(of_swarm, server, seconds)
            found |= killed({"run": of_run, "swarm": of_swarm}, workers_of(run.pid)[victim], f"{name[:3]}-…{name[-8:]}")
            found |= joined(of_swarm, address, folder)
    return found


def main() -> None:
    """Make the measurements, print them, and write them to a file."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", type=Path, help="file to which the measurements are written")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        found = measure(browser, Path(folder), options.pairs, options.seconds)
        browser.close()
    for name, value in found.items():
        print(f"{name:20} {value}")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
