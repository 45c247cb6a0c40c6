"""A machine joins a run with `outerloop join ADDRESS`, leaves with Ctrl-C, and joins again with the same line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.swarm.loopback import eventually
from tests.support.train_processes import invitation, rows, start

RUN = ["recipe=sparseloco", "workers=1", "exchange.peers=1", "exchange.run=summer", "rounds=100000", "eval.every=0"]
RUN += ["schedule.sync_every=30"]  # rounds long enough for a newcomer on a busy machine to catch up


def joining(address: str, run_dir: Path) -> subprocess.Popen[str]:
    own = [f"run_dir={run_dir}", "eval.sequences=16", "eval.every=0", "threads=1"]
    command = [sys.executable, "-m", "outerloop", "join", address, "--yes", "--host", "127.0.0.1", *own]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ)


def rounds_with_two(run_dir: Path) -> list[int]:
    try:
        return [row["round"] for row in rows(run_dir) if row["event"] == "round" and row["peers"] == 2]
    except FileNotFoundError:
        return []


def left(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=60)[0]


@pytest.mark.timeout(600)
def test_a_machine_joins_leaves_and_comes_back_with_one_line(tmp_path: Path) -> None:
    first = start(tmp_path / "a", *RUN, "threads=1")
    joined: list[subprocess.Popen[str]] = []
    try:
        address = invitation(first).partition("[")[2].rstrip("]")
        joined.append(joining(address, tmp_path / "b"))
        assert eventually(lambda: joined[0].poll() is not None or len(rounds_with_two(tmp_path / "b")) > 1, limit_s=260)
        said = left(joined[0])
        assert joined[0].returncode == 130, said
        assert "summer: 1 peer" in said and "model        nano" in said, said
        assert "of 4 sequences per forward and backward pass (inner.micro_batch=auto)" in said, said
        done = max(rounds_with_two(tmp_path / "b"))
        joined.append(joining(address, tmp_path / "b"))
        assert eventually(
            lambda: joined[1].poll() is not None or max(rounds_with_two(tmp_path / "b")) > done, limit_s=260
        )
        said = left(joined[1])
        assert joined[1].returncode == 130 and "resuming after inner step" in said, said
    finally:
        for process in [first, *joined]:
            process.kill()  # at once: alone, the first machine would wait for the other to return
            process.communicate()
