"""Real peers on loopback, closed whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from outerloop.exchange.swarm import SwarmExchange
from outerloop.exchange.swarm_gather import SwarmGather
from outerloop.exchange.swarm_gossip import SwarmGossip
from tests.support.swarm.loopback import together

Start = Callable[..., Any]


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Start]:
    """Start a peer of run "r" of one kind of exchange: the first alone, every later one at the first."""
    made: list[SwarmExchange] = []

    def start(kind: Callable[..., SwarmExchange], **options: Any) -> SwarmExchange:
        common: dict[str, Any] = {
            "run": "r",
            "worker": len(made),
            "identity_path": str(tmp_path / f"identity{len(made)}"),
            "initial_peers": made[0].address if made else [],
            "join_timeout_s": 30,
            "deadline_s": 30,
        }
        made.append(kind(**{**common, **options}))
        return made[-1]

    yield start
    together(made, SwarmExchange.abort)


@pytest.fixture
def make(started: Start) -> Start:
    """Start a peer that gathers."""
    return partial(started, SwarmGather)


@pytest.fixture
def make_gossip(started: Start) -> Start:
    """Start a peer that gossips."""
    return partial(started, SwarmGossip, meeting_s=30)
