"""`outerloop relay`: what it refuses, and which settings it forwards."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from outerloop.commands.join.offer import Offer
from outerloop.commands.relay import serving
from outerloop.swarm.access.identity import ensure_identity
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.manifest.manifest_relay import ManifestRelay
from outerloop.swarm.manifest.run_manifest import SignedManifest, signed
from outerloop.swarm.membership.known_addresses import addresses_file, read_addresses
from outerloop.swarm.membership.roster import Record, peer_name
from outerloop.swarm.p2p.observer import ObserverNode
from outerloop.swarm.timeouts import ROSTER_REFRESH_S
from outerloop.types import UserError
from tests.support.run_command import error_of
from tests.support.swarm.dht_scene import id_of, trust
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport

ADDRESS = f"/ip4/192.0.2.1/tcp/4/p2p/{id_of(1)}"
OF_HOST = SignedManifest(**signed(trust(1).signatures, run="summer", content=b"{}"))


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ([], "run outerloop relay ADDRESS"),
        (["here"], "not a full address like /ip4/"),
        ([ADDRESS, "--announce", "here"], "--announce: 'here' is not a full address"),
        ([ADDRESS, "--port", "65536"], "--port 65536 is not a port"),
        ([ADDRESS, "rounds=5"], "rounds=5"),
        ([ADDRESS, "--docker", "--run-dir=/data"], "leave out the run folder"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: list[str], answer: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer in error_of(monkeypatch, capsys, "relay", *arguments)


def test_the_copy_is_forwarded_while_the_peer_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = ensure_identity(tmp_path / "identity.key")

    def unreachable(address: str) -> Offer:
        raise UserError("no answer")

    monkeypatch.setattr(serving, "ask_peer", unreachable)
    with pytest.raises(UserError, match="no answer"):
        serving.manifest_of(ADDRESS, identity)
    own = MemoryTransport(MemoryNetwork(), Signatures.of(identity).peer_id)
    own.trust = trust(2)
    ManifestRelay(own, OF_HOST, source=id_of(1), folder=tmp_path)
    assert serving.manifest_of(ADDRESS, identity) == (OF_HOST, "no answer")
    with pytest.raises(UserError, match="no answer"):
        serving.manifest_of(f"/ip4/192.0.2.1/tcp/4/p2p/{id_of(3)}", identity)


class QuietNode:
    """A node that forwards nothing."""

    trust = trust(2)

    def call(self, work: Coroutine[Any, Any, Any], *, timeout_s: float) -> None:
        work.close()


@pytest.mark.parametrize(
    ("found", "answers", "reads"),
    [
        ("...", [True], 3),
        ("..1..1...", [True], 9),  # reads that find no peer count only in a row
        ("....", [False, True], 4),  # alone, as no other peer answers: joining again would not help
    ],
)
def test_a_relay_joins_again_only_after_several_empty_reads(
    found: str, answers: list[bool], reads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity, slept, said = ensure_identity(tmp_path / "identity.key"), list[float](), list[str]()
    present = [(Record(peer_name(0, id_of(1)), [ADDRESS], "", 0.0), 0.0)]
    roster, answering = iter([present if one == "1" else [] for one in found]), iter(answers)
    monkeypatch.setattr(serving, "roster_from_dht", lambda node, run: lambda: next(roster))
    monkeypatch.setattr(serving.time, "sleep", slept.append)
    serving.serve_until_alone(
        cast(ObserverNode, QuietNode()),
        OF_HOST,
        source=id_of(1),
        identity=identity,
        report=said.append,
        others_answer=lambda: next(answering),
    )
    assert slept == [ROSTER_REFRESH_S] * (reads - 1) and not list(roster) and not list(answering)
    assert said[0] == "0 peers in run summer" and ("1 peer in run summer" in said) == ("1" in found)
    assert read_addresses(addresses_file(identity)) == ([ADDRESS] if "1" in found else [])
