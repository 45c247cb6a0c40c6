"""Real peers on loopback, closed whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loopback import Make, together

from outerloop.exchange.swarm_gather import SwarmGather


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Start a peer of run "r": the first alone, every later one at the first."""
    made: list[SwarmGather] = []

    def start(**options: Any) -> SwarmGather:
        common: dict[str, Any] = {
            "run": "r",
            "worker": len(made),
            "identity_path": str(tmp_path / f"identity{len(made)}"),
            "initial_peers": made[0].address if made else [],
            "join_timeout_s": 30,
            "deadline_s": 30,
        }
        made.append(SwarmGather(**{**common, **options}))
        return made[-1]

    yield start
    together(made, SwarmGather.abort)
