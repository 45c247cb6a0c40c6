"""Real daemons: one run directory on two machines has one peer, and a worker that was killed is back at once."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from outerloop.exchange.swarm_gather import SwarmGather
from outerloop.swarm.access.hard_state_file import folder_of
from outerloop.swarm.access.identity import Identity
from outerloop.types import Round, UserError
from tests.support.swarm.loopback import Make, daemon_of, eventually, together

pytestmark = pytest.mark.long

LIMIT_S = 60


def landed(peers: list[SwarmGather], number: int) -> list[Any]:
    return together(peers, lambda one: one.start(one.peer.encode(), Round(number)).wait(LIMIT_S))


def copied(tmp_path: Path, index: int) -> str:
    """Copy a running peer's identity file and its stored rounds, but no file that it is still writing (".NAME")."""
    source, target = tmp_path / f"identity{index}", tmp_path / "copy"
    target.mkdir()
    shutil.copy2(source, target / "identity")
    shutil.copytree(folder_of(source), folder_of(target / "identity"), ignore=shutil.ignore_patterns(".*"))
    return str(target / "identity")


def test_a_copy_of_a_running_peer_stops_and_the_run_goes_on(make: Make, tmp_path: Path) -> None:
    told: list[str] = []
    trio = [make(peers=3), make(peers=3), make(peers=3, on_status=told.append)]
    together(trio, SwarmGather.join)
    landed(trio, 0)
    twin = make(peers=3, worker=2, identity_path=copied(tmp_path, 2))
    assert twin.peer == trio[2].peer
    outcome = together([twin], take_part)[0]
    landed(trio, 1)
    if outcome is None:  # who dialled it by its id got the copy: the elder has spoken since
        outcome = together([twin], take_part)[0]
    assert isinstance(outcome, UserError) and f"another machine runs with the identity of {twin.peer[4:]}" in str(
        outcome
    )
    assert f"run rm {tmp_path / 'copy' / 'identity'}" in str(outcome)
    rounds = landed(trio, 2)
    assert rounds[0] == rounds[1] == rounds[2] and [c.blob for c in rounds[0]] == [one.peer.encode() for one in trio]
    assert len(told) == 1 and "another machine has started with a copy" in told[0]
    assert sum(one.counters()["refused_outsiders"] for one in trio) >= 1


def take_part(twin: SwarmGather) -> None:
    if not twin._formed:  # noqa: SLF001
        twin.join(Round(1))
    twin.start(b"twin", Round(1)).wait(LIMIT_S)


def test_a_crashed_peer_returns_at_once_and_counts(make: Make, tmp_path: Path) -> None:
    trio = [make(peers=3) for _ in range(3)]
    together(trio, SwarmGather.join)
    landed(trio, 0)
    crash(trio[2], tmp_path / "identity2")
    back = make(peers=3, worker=2, identity_path=str(tmp_path / "identity2"))
    back.join(Round(1))
    assert Identity.read(tmp_path / "identity2").starts == 2
    rounds = landed([*trio[:2], back], 1)
    assert rounds[0] == rounds[1] == rounds[2] and len(rounds[0]) >= 2
    assert all(one.counters()["refused_outsiders"] == 0 for one in trio[:2])
    assert eventually(lambda: Identity.read(tmp_path / "identity2").voted == 2, limit_s=LIMIT_S), "it votes again"


def crash(peer: SwarmGather, identity: Path) -> None:
    """Its daemon and its network thread end at once: nothing is withdrawn, nobody is told."""
    os.kill(daemon_of(identity).pid, signal.SIGKILL)
    peer.node.close()
    peer._closed = True  # noqa: SLF001
