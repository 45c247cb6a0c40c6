"""Workers of a machine that end before the run is done: which checkpoints are saved, and what the user learns."""

from __future__ import annotations

import io
import json
import queue
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from outerloop.config import load
from outerloop.inner.events import Event
from outerloop.launcher.supervisor import Supervisor, WorkerCrashed
from outerloop.launcher.worker_pool import died_event
from outerloop.state import checkpoint

NOTICE = "no checkpoint is saved from now on, because worker 1 ended: stop this run and start the same command again"


def training(path: Path, *, workers: int) -> Supervisor:
    """Return the supervisor of local workers that have begun to train, in a run of four peers."""
    config = load.load([f"workers={workers}", "exchange=swarm_gather", "exchange.peers=4"])
    run, sinks = SimpleNamespace(path=path, resume_step=None), SimpleNamespace(write=lambda row: None)
    out = Supervisor(config, cast(Any, run), Console(file=io.StringIO(), width=200), cast(Any, sinks))
    out.ready = set(range(workers))
    return out


def left(worker: int) -> Event:
    return {"event": "left", "worker": worker, "step": 0}


def save(session: Supervisor, step: int, worker: int) -> None:
    """Let a worker save, and its supervisor learn of it."""
    checkpoint.save(session.run.path, step, worker, {})
    session.handle({"event": "saved", "worker": worker, "step": step})


def rows(session: Supervisor) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (session.run.path / "metrics.jsonl").read_text().splitlines()]


def process(session: Supervisor, *events: Event) -> None:
    """Let the supervisor process these events, until all its workers have ended."""
    pool = SimpleNamespace(events=queue.SimpleQueue[Event]())
    for event in events:
        pool.events.put(event)
    session.process_events(cast(Any, pool))


def test_a_run_that_continues_without_a_worker_says_once_that_it_saves_no_more(tmp_path: Path) -> None:
    session = training(tmp_path, workers=4)
    for worker in (1, 3):
        session.handle(died_event(worker, "ended with code -9"))
    said = [row["text"] for row in rows(session) if row["event"] == "status"]
    assert len(said) == 1 and said[0].startswith(NOTICE)
    for worker in (0, 2):
        save(session, 10, worker)
    assert checkpoint.generations(tmp_path) == []


def test_a_checkpoint_that_a_worker_has_saved_before_its_death_counts(tmp_path: Path) -> None:
    session = training(tmp_path, workers=3)
    save(session, 10, 1)
    session.handle(died_event(1, "ended with code -9"))
    for worker in (0, 2):
        save(session, 10, worker)
    assert checkpoint.newest_valid(tmp_path, 3) == (10, [])


def test_an_interrupt_after_the_death_of_a_worker_says_that_nothing_is_saved(tmp_path: Path) -> None:
    session = training(tmp_path, workers=3)
    session.handle(died_event(1, "ended with code -9"))
    session.save_before_leaving(cast(Any, None))
    assert "stopping without saving, because worker 1 ended" in session.console.file.getvalue()  # type: ignore[attr-defined]


def test_a_worker_that_a_signal_ends_has_died(tmp_path: Path) -> None:
    session = training(tmp_path, workers=3)
    session.handle(left(1))
    assert [row["event"] for row in rows(session)] == ["died", "status"]
    assert session.died == {1} and session.active == {0, 2}


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (died_event(0, "ended with code -9, see log.txt"), r"^worker 0 ended with code -9, see log\.txt$"),
        (left(0), "^worker 0 left before the end of the run$"),
    ],
)
def test_a_machine_that_loses_its_only_worker_ends_with_the_reason(tmp_path: Path, last: Event, reason: str) -> None:
    with pytest.raises(WorkerCrashed, match=reason):
        process(training(tmp_path, workers=1), last)
    assert all(
        "no checkpoint" not in row.get("text", "") for row in map(json.loads, (tmp_path / "metrics.jsonl").open())
    )


def test_workers_that_leave_after_the_end_have_not_died(tmp_path: Path) -> None:
    session = training(tmp_path, workers=2)
    process(session, {"event": "done", "worker": 0, "step": 4}, left(0), left(1))
    assert session.died == set()
