"""Peers resume from an older checkpoint than this machine's newest: the newer one no longer counts."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from outerloop.config import load
from outerloop.launcher.supervisor import Supervisor
from outerloop.state import checkpoint
from outerloop.swarm.membership.common_checkpoint import common

MAIN, OTHER = "a", "b"
"""Two machines of one run."""


def supervisor(path: Path, resume_step: int | None, *, workers: int = 1) -> Supervisor:
    """The supervisor of a session that starts at this step of a run directory."""
    checkpoint.discard_after(path, resume_step)
    config = load.load([f"workers={workers}", "exchange=swarm_gather", "exchange.peers=2"])
    run, sinks = SimpleNamespace(path=path, resume_step=resume_step), SimpleNamespace(write=lambda row: None)
    return Supervisor(config, cast(Any, run), Console(file=io.StringIO()), cast(Any, sinks))


def save(session: Supervisor, step: int, *, history: str, worker: int = 0) -> None:
    """A worker saves, and its supervisor learns of it."""
    checkpoint.save(session.run.path, step, worker, {"history": history}, slow_hash=f"{history}{step}")
    session.handle({"event": "saved", "worker": worker, "step": step})


def go_back(session: Supervisor, step: int) -> None:
    session.handle({"event": "back", "worker": 0, "step": step})


def held(path: Path) -> dict[int, str]:
    """What the worker of a machine reports after a restart."""
    return checkpoint.resumable_steps(path, 0, newest=checkpoint.newest_valid(path, 1)[0])


def test_the_common_checkpoint_outlives_the_first_new_one(tmp_path: Path) -> None:
    """Both machines are interrupted at different steps, resume from step 100, and lose power after one saved."""
    runs = {name: tmp_path / name for name in (MAIN, OTHER)}
    for name, last in ((MAIN, 105), (OTHER, 106)):
        runs[name].mkdir()
        session = supervisor(runs[name], None)
        for step in (90, 100):
            save(session, step, history="old")
        session.stopping = True
        save(session, last, history="old")
        session.rows.close()
    assert common({name: held(path) for name, path in runs.items()}, members=2) == (100, "old100")
    sessions = {name: supervisor(path, checkpoint.newest_valid(path, 1)[0]) for name, path in runs.items()}
    for session in sessions.values():
        go_back(session, 100)
    save(sessions[MAIN], 110, history="new")
    assert held(runs[MAIN]) == {110: "new110", 100: "old100"}
    assert common({name: held(path) for name, path in runs.items()}, members=2) == (100, "old100")


@pytest.mark.parametrize("saved", [1, 2])
def test_an_abandoned_step_counts_again_once_all_workers_have_saved_it(tmp_path: Path, saved: int) -> None:
    first = supervisor(tmp_path, None, workers=2)
    for step in (100, 200):
        for worker in range(2):
            save(first, step, history="old", worker=worker)
    first.rows.close()
    second = supervisor(tmp_path, 200, workers=2)
    go_back(second, 100)
    assert (checkpoint.generation(tmp_path, 200) / "worker-0.pt").exists(), "a worker that joins late may still read it"
    for worker in range(saved):
        save(second, 200, history="new", worker=worker)
    step, history = (200, "new") if saved == 2 else (100, "old")
    assert checkpoint.newest_valid(tmp_path, 2) == (step, [])
    assert all(checkpoint.load(tmp_path, step, worker)["history"] == history for worker in range(2))
