"""A relay serves the manifest of another peer, follows its changes, and keeps a copy for the time without that peer."""

from __future__ import annotations

from pathlib import Path

from outerloop.swarm.manifest.manifest_relay import ManifestRelay, read_copy
from outerloop.swarm.manifest.run_manifest import ManifestService, SignedManifest, fetch, signed
from tests.support.swarm.dht_scene import id_of, trust
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import run

NEWCOMER, HOST, RELAY = 1, 2, 3


def transport(network: MemoryNetwork, number: int) -> MemoryTransport:
    out = MemoryTransport(network, id_of(number))
    out.trust = trust(number)
    return out


def of_host(content: bytes, run: str = "summer") -> SignedManifest:
    return SignedManifest(**signed(trust(HOST).signatures, run=run, content=content))


def test_a_newcomer_gets_the_manifest_of_the_host_also_after_a_change(tmp_path: Path) -> None:
    async def scene() -> None:
        network = MemoryNetwork()
        own = transport(network, HOST)
        service = ManifestService(own, signed(own.trust.signatures, run="summer", content=b"1"))
        await service.serve()
        relay = ManifestRelay(transport(network, RELAY), of_host(b"1"), source=id_of(HOST), folder=tmp_path)
        await relay.serve()
        newcomer = transport(network, NEWCOMER)
        assert await fetch(newcomer, id_of(RELAY)) == of_host(b"1")
        service.answer = signed(own.trust.signatures, run="summer", content=b"2")
        await relay.refresh()
        assert await fetch(newcomer, id_of(RELAY)) == of_host(b"2")
        service.answer = signed(own.trust.signatures, run="winter", content=b"3")
        await relay.refresh()
        assert await fetch(newcomer, id_of(RELAY)) == of_host(b"2")  # not that of another run
        assert read_copy(tmp_path, id_of(HOST), trust(RELAY).signatures) == of_host(b"2")

    run(scene())


def test_a_relay_keeps_the_manifest_while_the_host_does_not_answer(tmp_path: Path) -> None:
    async def scene() -> None:
        network = MemoryNetwork()
        relay = ManifestRelay(transport(network, RELAY), of_host(b"1"), source=id_of(HOST), folder=tmp_path)
        await relay.serve()
        await relay.refresh()
        assert await fetch(transport(network, NEWCOMER), id_of(RELAY)) == of_host(b"1")

    run(scene())


def test_a_damaged_or_missing_copy_is_not_used(tmp_path: Path) -> None:
    def copy() -> SignedManifest | None:
        return read_copy(tmp_path, id_of(HOST), trust(RELAY).signatures)

    assert copy() is None
    ManifestRelay(transport(MemoryNetwork(), RELAY), of_host(b"1"), source=id_of(HOST), folder=tmp_path)
    (file,) = tmp_path.iterdir()
    assert copy() == of_host(b"1")
    for damaged in (b"", file.read_bytes()[:-1], file.read_bytes().replace(b"summer", b"winter"), b"\x01"):
        file.write_bytes(damaged)
        assert copy() is None
