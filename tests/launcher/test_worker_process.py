"""A worker process and its parent: the worker never outlives it, and tells it of an earlier checkpoint."""

import io
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outerloop.inner.events import Event
from outerloop.inner.stop_point import StopPoint
from outerloop.launcher import worker_process

REQUEST = '{"request_stop": true}\n'


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The signals that are sent, as (process id, number)."""
    signals: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: signals.append((pid, number)))
    return signals


def follow(lines: str, emit: Callable[[Event], None], monkeypatch: pytest.MonkeyPatch) -> StopPoint:
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    stop_point = StopPoint()
    worker_process.follow_parent(0, emit, stop_point)
    return stop_point


def test_it_answers_requests_and_leaves_when_standard_input_is_closed(
    sent: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Event] = []
    stop_point = follow(REQUEST + '{"stop_after": 7}\n', events.append, monkeypatch)
    assert [event["event"] for event in events] == ["stopping"] and stop_point.target == 7
    assert sent == [(os.getpid(), signal.SIGINT)]


def test_it_leaves_if_the_parent_was_killed_before_it_could_read_the_answer(
    sent: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def emit(event: Event) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        follow(REQUEST, emit, monkeypatch)
    assert sent == [(os.getpid(), signal.SIGINT)]


@pytest.mark.parametrize(("step", "told"), [(20, []), (10, [10]), (None, [])])
def test_the_parent_is_told_of_an_earlier_checkpoint_but_not_of_a_start_from_scratch(
    step: int | None, told: list[int], tmp_path: Path
) -> None:
    events: list[Event] = []
    swarm = SimpleNamespace(address=[], form=lambda held: step, publish_status=print, on_close=print)
    assert worker_process.agree_on_checkpoint(cast(Any, swarm), tmp_path, 20, 0, events.append) == step
    assert [(event["event"], event["step"]) for event in events] == [("back", one) for one in told]
