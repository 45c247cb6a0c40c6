"""`outerloop relay`: what it refuses, and which settings it forwards."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outerloop.commands import relay
from outerloop.commands.join.offer import Offer
from outerloop.commands.relay import serving
from outerloop.swarm.access.identity import ensure_identity
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.manifest.manifest_relay import ManifestRelay, read_copy
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
    newest = serving.serve_until_alone(
        cast(ObserverNode, QuietNode()),
        OF_HOST,
        source=id_of(1),
        identity=identity,
        report=said.append,
        others_answer=lambda: next(answering),
    )
    assert newest == OF_HOST
    assert slept == [ROSTER_REFRESH_S] * (reads - 1) and not list(roster) and not list(answering)
    assert said[0] == "0 peers in run summer" and ("1 peer in run summer" in said) == ("1" in found)
    assert read_addresses(addresses_file(identity)) == ([ADDRESS] if "1" in found else [])


def test_a_relay_that_joins_again_forwards_the_newest_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run was extended while the relay ran: its next node begins with the new manifest, and keeps it on disk."""
    changed = SignedManifest(**signed(trust(1).signatures, run="summer", content=b"extended"))
    given: list[SignedManifest] = []

    class Stopped(Exception):
        pass

    def serve(node: object, manifest: SignedManifest, **_: object) -> SignedManifest:
        given.append(manifest)
        if len(given) == 2:
            raise Stopped
        return changed

    monkeypatch.setattr(relay, "manifest_of", lambda *_: (OF_HOST, ""))
    monkeypatch.setattr(relay, "answering_peers", lambda *_, **__: [ADDRESS])
    monkeypatch.setattr(relay, "visit", lambda **_: nullcontext(SimpleNamespace(addresses=[ADDRESS])))
    monkeypatch.setattr(relay, "serve_until_alone", serve)
    options = relay.parser().parse_args([ADDRESS, "--run-dir", str(tmp_path)])
    with pytest.raises(Stopped):
        relay.run_relay(options)
    assert given == [OF_HOST, changed]


def test_the_newest_manifest_is_the_one_that_the_peer_sent_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = SignedManifest(**signed(trust(1).signatures, run="summer", content=b"extended"))
    identity, reads = ensure_identity(tmp_path / "identity.key"), iter([["peer"], [], [], []])

    async def refresh(self: ManifestRelay) -> None:
        self._forward(changed)

    class Node(QuietNode):
        def call(self, work: Coroutine[Any, Any, Any], *, timeout_s: float) -> None:
            asyncio.run(work)

    async def serve(self: ManifestRelay) -> None:
        pass

    record = Record(peer_name(0, id_of(1)), [ADDRESS], "", 0.0)
    monkeypatch.setattr(ManifestRelay, "refresh", refresh)
    monkeypatch.setattr(ManifestRelay, "serve", serve)
    monkeypatch.setattr(serving, "roster_from_dht", lambda node, run: lambda: [(record, 0.0) for _ in next(reads)])
    monkeypatch.setattr(serving.time, "sleep", lambda _: None)
    newest = serving.serve_until_alone(
        cast(ObserverNode, Node()),
        OF_HOST,
        source=id_of(1),
        identity=identity,
        report=lambda _: None,
        others_answer=lambda: True,
    )
    assert newest == changed
    assert read_copy(tmp_path, id_of(1), trust(2).signatures) == changed
