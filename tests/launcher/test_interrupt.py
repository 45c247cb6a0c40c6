"""Ctrl-C while workers train: they save after a common step, unless a worker waits for peers that are gone."""

import io
import queue
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from outerloop.config import load
from outerloop.inner.events import Event
from outerloop.launcher import supervisor
from outerloop.launcher.supervisor import Supervisor
from outerloop.launcher.worker_pool import stopping_event

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


def stopped(path: Path, answer: Callable[[int], list[Event]]) -> tuple[Pool, str]:
    """What a supervisor does with these answers after an interrupt, and what it prints."""
    config = load.load(["workers=2", "exchange=swarm_gather", "exchange.peers=2"])
    out, sinks = io.StringIO(), SimpleNamespace(write=lambda row: None)
    run = SimpleNamespace(path=path, resume_step=None)
    watching = Supervisor(config, cast(Any, run), Console(file=out, width=200), cast(Any, sinks))
    watching.ready = {0, 1}
    pool = Pool(answer)
    watching.save_before_leaving(cast(Any, pool))
    watching.rows.close()
    return pool, out.getvalue()


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
