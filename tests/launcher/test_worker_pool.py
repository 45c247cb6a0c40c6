"""Workers that fail, whatever they raise: the last event of each says so."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from omegaconf import OmegaConf

from outerloop.launcher import thread_pool
from outerloop.launcher.worker_pool import run_to_end
from outerloop.types import Stopped

Panic = type("PanicException", (BaseException,), {})
"""Stands for that of pyo3, which no `except Exception` catches."""


def raising(error: BaseException) -> Callable[..., None]:
    def work(*_: Any) -> None:
        raise error

    return work


@pytest.mark.parametrize("error", [SystemExit(3), Panic("in Rust"), ValueError("odd")])
def test_a_thread_that_fails_sends_an_error_whatever_it_raises(error: BaseException, tmp_path: Path) -> None:
    config = OmegaConf.create({"workers": 2, "threads": 1})
    pool = thread_pool.ThreadWorkerPool(config, tmp_path, None)
    pool.train = cast(Any, raising(error))  # type: ignore[method-assign]
    pool.start()
    events = [pool.events.get(timeout=20) for _ in range(2)]
    pool.join()
    assert {event["worker"] for event in events} == {0, 1}
    assert all((event["event"], event["kind"]) == ("error", "crash") for event in events)
    assert all(type(error).__name__ in event["text"] for event in events)


def test_a_worker_that_is_stopped_has_left() -> None:
    assert run_to_end(1, raising(Stopped())) == {"event": "left", "worker": 1, "step": 0}


def test_an_interrupt_of_the_main_thread_is_passed_on() -> None:
    with pytest.raises(KeyboardInterrupt):
        run_to_end(0, raising(KeyboardInterrupt()))
