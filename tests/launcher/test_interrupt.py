"""Ctrl-C while workers train: they save after a common step, unless a worker waits for peers that are gone."""

import errno
import io
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

import pytest
from rich.console import Console

from outerloop.config import load
from outerloop.inner.events import Event
from outerloop.launcher import supervisor
from outerloop.launcher.supervisor import Supervisor
from outerloop.launcher.train import train
from outerloop.launcher.worker_pool import stopping_event
from outerloop.output import lenient_stdout
from outerloop.state import checkpoint
from tests.support.train_processes import SMALL, rounds_done

REASON = "1 of 2 peers are reachable, but a majority is 2"


class Pool:
    """Two workers that have begun steps 7 and 8. `answer` gets the number of requests so far, and says what follows."""

    def __init__(self, answer: Callable[[int], list[Event]]) -> None:
        self.events = queue.SimpleQueue[Event]()
        self.answer, self.requests, self.targets = answer, 0, list[int]()

    def request_stop(self) -> None:
        self.requests += 1
        for event in self.answer(self.requests):
            self.events.put(event)

    def stop_after(self, step: int) -> None:
        self.targets.append(step)


def stopped(path: Path, answer: Callable[[int], list[Event]], out: IO[str] | None = None) -> tuple[Pool, str]:
    """What a supervisor does with these answers after an interrupt, and what it prints, to `out` if there is one."""
    config = load.load(["workers=2", "exchange=swarm_gather", "exchange.peers=2"])
    said, sinks = io.StringIO(), SimpleNamespace(write=lambda row: None)
    run = SimpleNamespace(path=path, resume_step=None)
    watching = Supervisor(config, cast(Any, run), Console(file=out or said, width=200), cast(Any, sinks))
    watching.ready = {0, 1}
    pool = Pool(answer)
    watching.save_before_leaving(cast(Any, pool))
    watching.rows.close()
    return pool, said.getvalue()


class Unwritable(io.StringIO):
    """A terminal, a pipe or a file that takes no more text."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def write(self, text: str) -> int:
        raise self.error

    def flush(self) -> None:
        raise self.error


GONE = [BrokenPipeError(errno.EPIPE, "Broken pipe"), OSError(errno.ENOSPC, "No space left"), OSError(errno.EIO, "gone")]


def both(*, blocked: str = "") -> list[Event]:
    return [stopping_event(0, 7, blocked=blocked), stopping_event(1, 8)]


def left(worker: int) -> Event:
    return {"event": "left", "worker": worker, "step": 8}


@pytest.fixture(autouse=True)
def asks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "ASK_S", 0.01)


def test_workers_train_to_the_larger_step_and_leave(tmp_path: Path) -> None:
    pool, said = stopped(tmp_path, lambda request: [*both(), left(0), left(1)])
    assert pool.targets == [8] and "stopping without saving" not in said


def test_a_worker_that_waits_for_peers_that_are_gone_ends_the_run_without_saving(tmp_path: Path) -> None:
    pool, said = stopped(tmp_path, lambda request: both(blocked=REASON))
    assert pool.targets == [] and f"stopping without saving: {REASON}" in said


def test_peers_that_go_while_the_workers_train_to_the_step_end_it_too(tmp_path: Path) -> None:
    """Workers that answer no event are asked again."""
    pool, said = stopped(tmp_path, lambda request: both(blocked=REASON if request == 4 else ""))
    assert pool.targets == [8] and pool.requests == 4 and f"stopping without saving: {REASON}" in said


def test_a_worker_that_is_asked_again_is_given_one_step_only(tmp_path: Path) -> None:
    pool, _ = stopped(tmp_path, lambda request: [*both(), *([left(0), left(1)] if request == 3 else [])])
    assert pool.targets == [8] and pool.requests == 3


@pytest.mark.parametrize("error", GONE)
def test_workers_save_although_the_console_is_gone(
    error: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", Unwritable(error))
    pool, _ = stopped(tmp_path, lambda request: [*both(), left(0), left(1)], lenient_stdout())
    assert pool.targets == [8]


@pytest.mark.parametrize("error", GONE)
def test_a_run_continues_to_its_end_without_its_console(
    error: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*SMALL, "exchange=inprocess", "workers=1", "rounds=1", f"run_dir={tmp_path}/run"]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Unwritable(error))
        assert train(load.load(options))["rounds"] == 1


@pytest.mark.slow
def test_ctrl_c_that_ends_the_reader_of_the_output_too_saves(tmp_path: Path) -> None:
    """As in `outerloop train | tee log`: Ctrl-C reaches both programs."""
    options = ["exchange=inprocess", "workers=2", "rounds=100000", "checkpoint.every=0", f"run_dir={tmp_path}/run"]
    command = [sys.executable, "-m", "outerloop", "train", *SMALL, *options]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0)
    reader = subprocess.Popen(["cat"], stdin=run.stdout, stdout=subprocess.DEVNULL, process_group=run.pid)
    assert run.stdout and run.stderr
    run.stdout.close()
    while not rounds_done(tmp_path / "run"):
        assert run.poll() is None, run.stderr.read()
        time.sleep(0.01)
    os.killpg(run.pid, signal.SIGINT)
    said = run.stderr.read()
    run.stderr.close()
    assert reader.wait() == -signal.SIGINT and (run.wait(), said) == (130, "\nstopped\n")
    assert checkpoint.sealed(tmp_path / "run")
