"""Doctor and status against live peers, and that they leave nothing behind."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outerloop.commands.doctor import network
from outerloop.config.run_directory import identity_file
from outerloop.swarm.access.identity import ensure_identity
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.membership import roster
from outerloop.swarm.membership.status import Status
from outerloop.swarm.p2p import daemon, socket_dir
from outerloop.swarm.p2p.node import Node
from outerloop.swarm.p2p.observer import visit
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.timeouts import OPEN_S, START_S
from tests.support.run_command import run_command
from tests.support.swarm.loopback import Make, eventually, runs, together
from tests.support.swarm.virtual_clock import run

pytestmark = pytest.mark.long

Command = Callable[..., tuple[int, str, str]]
ABSENT = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"


@pytest.fixture(autouse=True)
def own_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets where no other test of this machine puts its own."""
    monkeypatch.setattr(socket_dir, "PREFIX", f"outerloop-visitors-{os.getpid()}-")


def left_here() -> set[object]:
    """Sockets' folders, and children of this process that run."""
    children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    pids = {int(pid) for file in children for pid in file.read_text().split()}
    return {pid for pid in pids if runs(pid)} | set(Path("/tmp").glob(socket_dir.PREFIX + "*"))


def test_waiting_for_the_port_is_part_of_the_time_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async def once(options: Any, where: Path, limit_s: float) -> float:
        return limit_s

    taken = iter([True] * 20 + [False])
    monkeypatch.setattr(daemon, "_is_taken", lambda host, port: next(taken))
    monkeypatch.setattr(daemon, "_launch_once", once)
    options: Any = SimpleNamespace(host="127.0.0.1", port=4001)
    left_s: Any = run(daemon.launch(options, Path()))
    assert left_s == pytest.approx(START_S - 20 * daemon.PORT_POLL_S)


@pytest.fixture
def outerloop(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """A command: its exit code and what it printed."""

    def run(*arguments: str) -> tuple[int, str, str]:
        return run_command(monkeypatch, capsys, *arguments)

    return run


def test_doctor_against_a_live_peer(make: Make, outerloop: Command) -> None:
    peer = make(peers=2)
    before = left_here()
    nobody = peer.address[0].rpartition("/")[0] + "/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
    code, out, _ = outerloop("doctor", "--peer", peer.address[0], "--peer", nobody)
    lines = out.splitlines()
    assert code == 1 and lines[-1] == "failed checks: 1", out
    for line in ("daemon    p2pd started", "port      a second daemon", f"peer      {peer.node.peer_id}", "clock"):
        assert any(said.startswith(f"✓ {line}") for said in lines), out
    assert any(said.startswith("✗ peer") and "peer id mismatch" in said for said in lines), out
    assert left_here() <= before


def test_a_malformed_address_is_unreachable() -> None:
    with visit() as visitor:
        for address in ("garbage", "", "/ip4/127.0.0.1/tcp/1/p2p/0OIl", "/ip4/1/tcp/x/p2p/é"):
            with pytest.raises(Unreachable):
                visitor.call(visitor.dial(address), timeout_s=20)


def test_ctrl_c_in_the_midst_leaves_nothing(monkeypatch: pytest.MonkeyPatch, outerloop: Command) -> None:
    def pressed(addresses: object) -> None:
        assert left_here() > before
        raise KeyboardInterrupt

    before = left_here()
    monkeypatch.setattr(network, "address_finding", pressed)
    code, out, err = outerloop("doctor")
    assert code == 130 and "✓ daemon" in out and err == "\nstopped\n"
    assert left_here() <= before


@pytest.mark.parametrize("pressed_s", [0.0, 0.03, 0.1, 0.2])
def test_ctrl_c_while_the_daemon_starts_leaves_nothing(
    pressed_s: float, monkeypatch: pytest.MonkeyPatch, outerloop: Command
) -> None:
    def call(self: Node, work: Coroutine[Any, Any, Any], *, timeout_s: float) -> None:
        starting = self.spawn(work)
        time.sleep(pressed_s)
        starting.cancel()
        raise KeyboardInterrupt

    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    monkeypatch.setattr(Node, "call", call)
    before = left_here()
    assert outerloop("doctor")[0] == 130
    gc.collect()
    assert left_here() <= before and not complaints


def test_status_shows_two_live_peers_and_is_not_seen(
    make: Make, outerloop: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roster, "ROSTER_LEAST_S", 0.1)
    first, second = make(peers=2), make(peers=2)
    first.publish_status(Status(round=7, peers=2, loss=2.25, tokens_per_s=1000.0))
    before = left_here()
    seen: list[Any] = []

    def told() -> bool:
        seen[:] = outerloop("status", second.address[0], "--run", "r", "--once")
        return " 7 " in seen[1]

    assert eventually(told, limit_s=20)
    code, out, _ = seen
    assert code == 0 and "run r: 2 peers, 2 took part in round 7" in out, out
    rows = [line.split() for line in out.splitlines() if "-…" in line]
    assert [row[:7] for row in rows if row[0].startswith("000")] == [
        [f"000-…{first.node.peer_id[-8:]}", first.address[0].partition("/p2p/")[0], "7", "2", "peers", "2.25", "1,000"]
    ]
    assert len(rows) == 2 and "ago" in rows[1]
    code, out, _ = outerloop("status", first.address[0], "--run", "r", "--once")
    assert code == 0 and "run r: 2 peers" in out, "an observer is in no roster"
    code, _, err = outerloop("status", first.address[0], "--run", "other", "--once")
    assert code == 2 and "exchange.run" in err
    assert left_here() <= before


def test_status_of_a_listed_run_is_for_the_machines_of_its_peers(
    make: Make, outerloop: Command, tmp_path: Path
) -> None:
    keys = [identity_file(tmp_path / name, 0) for name in ("here", "there")]
    ids = [Signatures.of(ensure_identity(key)).peer_id for key in keys]
    first, second = (make(peers=2, allow=ids, identity_path=str(key)) for key in keys)
    assert together([first, second], lambda peer: peer.join()) == [None, None]
    looks = ["status", first.address[0], "--run", "r", "--once"]
    code, _, err = outerloop(*looks)
    assert code == 2 and "exchange.allow" in err and "--run-dir" in err and err.count("\n") == 1, err
    code, out, _ = outerloop(*looks, "--run-dir", str(tmp_path / "here"))
    assert code == 0 and "run r: 2 peers" in out and all(f"-…{one[-8:]}" in out for one in ids), out
    code, _, err = outerloop(*looks, "--run-dir", str(tmp_path / "there"))
    assert code == 2 and "has no worker" in err, err


def test_an_address_behind_a_relay_is_dialed_through_that_relay() -> None:
    with visit() as relay, visit() as node:
        dialing = node.dial(f"{relay.addresses[0]}/p2p-circuit/p2p/{ABSENT}")
        with pytest.raises(Unreachable, match=r"relay circuit: NO_RESERVATION"):  # the relay has answered
            node.call(dialing, timeout_s=2 * OPEN_S)


@pytest.mark.parametrize("relay", ["x", "Qm1", ""])
def test_a_malformed_id_of_a_relay_is_unreachable(relay: str) -> None:
    with visit() as node, pytest.raises(Unreachable):
        node.call(node.dial(f"/ip4/127.0.0.1/tcp/4/p2p/{relay}/p2p-circuit/p2p/{node.peer_id}"), timeout_s=2 * OPEN_S)
