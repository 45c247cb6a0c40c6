"""A volunteer joins a run of `outerloop host` through a relay, and a host that was killed finds its run again."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.swarm.loopback import eventually
from tests.support.train_processes import outerloop, rounds_with_two, rows

HOST = ["host", "--name", "summer", "--host", "127.0.0.1", "--port", "0", "model=nano", "schedule.sync_every=30"]
SMALL = ["eval.sequences=16", "eval.every=0", "threads=1"]


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    return outerloop(*arguments, cwd=folder)


def join_line(process: subprocess.Popen[str]) -> list[str]:
    """The arguments of the line that a host or a relay prints for volunteers."""
    assert process.stdout
    said = ""
    for line in process.stdout:
        said += line
        if found := re.match(r" +outerloop (join /ip4/127\.0\.0\.1/tcp/\S+ --host 127\.0\.0\.1)$", line):
            return found[1].split()
    raise AssertionError(said)


def end(processes: list[subprocess.Popen[str]]) -> None:
    """Kill the processes at once."""
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_volunteer_joins_through_a_relay_and_its_payload_counts(tmp_path: Path) -> None:
    started = [start(tmp_path / "host", *HOST, *SMALL)]
    try:
        address = join_line(started[0])[1]
        started.append(start(tmp_path / "relay", "relay", address, "--host", "127.0.0.1", "--port", "0"))
        joining = join_line(started[1])
        assert joining[1] != address
        volunteer = start(tmp_path / "volunteer", *joining, "--yes", *SMALL)
        started.append(volunteer)
        folder = tmp_path / "volunteer/runs/join-summer"
        assert eventually(lambda: volunteer.poll() is not None or len(rounds_with_two(folder)) > 1, limit_s=200)
        volunteer.send_signal(signal.SIGINT)
        said = volunteer.communicate(timeout=60)[0]
        assert volunteer.returncode == 130, said
        assert f"signed by    …{address[-8:]}, forwarded by …{joining[1][-8:]}" in said, said
        assert rounds_with_two(tmp_path / "host/runs/summer")
    finally:
        end(started)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_host_that_was_killed_joins_the_volunteer_that_remained(tmp_path: Path) -> None:
    host = start(tmp_path / "host", *HOST, *SMALL)
    started = [host]
    try:
        started.append(start(tmp_path / "volunteer", *join_line(host), "--yes", *SMALL))
        folder = tmp_path / "host/runs/summer"
        remembered = folder / "workers/0/identity.peers"
        assert eventually(lambda: remembered.exists() and len(rounds_with_two(folder)) > 1, limit_s=200)
        end([host])
        before = max(rounds_with_two(folder))
        started.append(start(tmp_path / "host", *HOST, *SMALL))
        assert eventually(lambda: max(rounds_with_two(folder), default=0) > before + 1, limit_s=200)
    finally:
        end(started)


def all_rounds(run_dir: Path) -> list[int]:
    return [row["round"] for row in rows(run_dir) if row["event"] == "round"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_host_continues_when_its_only_volunteer_leaves_and_volunteers_join_again(tmp_path: Path) -> None:
    host = start(tmp_path / "host", *HOST, *SMALL)
    started, folder = [host], tmp_path / "host/runs/summer"
    joining = join_line(host)
    try:
        for name in ("one", "one", "two"):
            met = len(rounds_with_two(folder))
            volunteer = start(tmp_path / name, *joining, "--yes", *SMALL)
            started.append(volunteer)
            assert eventually(lambda met=met: len(rounds_with_two(folder)) > met + 1, limit_s=900)
            volunteer.send_signal(signal.SIGINT)
            said = volunteer.communicate(timeout=300)[0]
            assert volunteer.returncode == 130, said
            left_at = max(all_rounds(folder))
            assert eventually(lambda at=left_at: max(all_rounds(folder)) > at + 3, limit_s=900)
        assert host.poll() is None
    finally:
        end(started)
