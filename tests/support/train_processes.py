"""Runs of `outerloop train` in processes of their own: start them, follow their rounds, and find their children."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.run_output import address_in
from tests.support.swarm.loopback import eventually, runs

SMALL = ["model=nano", "eval.sequences=16", "inner.seq_len=32", "inner.batch=4", "schedule.sync_every=2"]


def outerloop(*arguments: object, env: dict[str, str] | None = None, cwd: Path | None = None) -> subprocess.Popen[str]:
    """A command of `outerloop` in a process of its own, whose output and errors come through one pipe."""
    command = [sys.executable, "-m", "outerloop", *map(str, arguments)]
    env = os.environ | (env or {})
    return subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)


def start(run_dir: Path, *overrides: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return outerloop("train", *SMALL, f"run_dir={run_dir}", *overrides, env=env)


def invitation(first: subprocess.Popen[str]) -> str:
    """What others type to meet a machine, once it has told."""
    assert first.stdout
    return next(filter(None, map(address_in, first.stdout)))


def rows(run_dir: Path) -> list[dict]:
    file = run_dir / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def family(pid: int) -> set[int]:
    """A process and all its descendants; workers and daemons have sessions of their own but keep their parents."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def rounds_done(run_dir: Path) -> int:
    try:
        return max((row["round"] for row in rows(run_dir) if row["event"] == "round"), default=0)
    except FileNotFoundError:
        return 0


def rounds_with_two(run_dir: Path) -> list[int]:
    """The rounds in which two peers took part."""
    try:
        return [row["round"] for row in rows(run_dir) if row["event"] == "round" and row["peers"] == 2]
    except FileNotFoundError:
        return []


def gone(pids: set[int]) -> bool:
    return eventually(lambda: not any(map(runs, pids)), limit_s=30)
