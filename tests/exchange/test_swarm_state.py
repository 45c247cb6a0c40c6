"""What a peer publishes while it downloads the state of the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outerloop.exchange.swarm_state import SwarmState
from outerloop.types import QuorumLost

SIZE = 1000


def finished(work: Coroutine[Any, Any, Any]) -> Future[Any]:
    """The outcome of work that is done at once."""
    done: Future[Any] = Future()
    try:
        done.set_result(asyncio.run(work))
    except QuorumLost as error:
        done.set_exception(error)
    return done


def published(install: Callable[..., Coroutine[Any, Any, Any]]) -> list[float | None]:
    """The parts of the state that a peer publishes during one download."""
    parts: list[float | None] = []
    transfer = SimpleNamespace(install_state=install, listen=lambda: None, silent_s=lambda: 0.0)
    peer = SwarmState(
        node=cast(Any, None),
        transfer=cast(Any, transfer),
        meetings=cast(Any, None),
        own="000-a",
        roster=tuple,
        spawn=finished,
        on_status=lambda text: None,
        on_loading=parts.append,
        patience_s=1.0,
    )
    try:
        peer.of_run(tuple, session="r/1", max_bytes=SIZE)
    except QuorumLost:
        parts.append(-1.0)
    return parts


def test_each_percentage_is_published_once_and_none_afterwards():
    async def install(names, *, session, at_most, progress):
        for received in (0, 4, 9, 10, 500, 501, SIZE):
            progress(received, SIZE)
        return 3, b""

    assert published(install) == [0.0, 0.01, 0.5, 1.0, None]


def test_a_download_that_fails_is_not_shown_any_longer():
    async def install(names, *, session, at_most, progress):
        progress(500, SIZE)
        raise QuorumLost("no peer is left")

    assert published(install) == [0.0, 0.5, None, -1.0]


@pytest.mark.parametrize(("size", "parts"), [(0, [0.0, None]), (1, [0.0, 1.0, None])])
def test_a_state_of_no_or_one_byte_has_a_part(size, parts):
    async def install(names, *, session, at_most, progress):
        progress(size, size)
        return 3, b""

    assert published(install) == parts
