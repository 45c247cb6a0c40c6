"""Greetings: one initial peer that admits this one is enough; otherwise the error names the cause."""

from __future__ import annotations

import logging

import pytest

from outerloop.swarm.p2p import greeting
from outerloop.swarm.p2p.greeting import NotAllowed, greet
from outerloop.swarm.p2p.probe import Probes, clock_of
from outerloop.swarm.timeouts import OPEN_S
from outerloop.types import UserError
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import now_s, virtual


async def seen(peer_id: str) -> str:
    return ""


async def serving(network: MemoryNetwork, name: str, *, allow: tuple[str, ...] = ()) -> MemoryTransport:
    transport = MemoryTransport(network, name, allow=allow)
    await Probes(transport, seen=seen).serve()
    return transport


@virtual
async def test_one_peer_that_admits_this_one_is_enough() -> None:
    network = MemoryNetwork()
    await serving(network, "open")
    await serving(network, "closed", allow=("closed", "other"))
    assert await greet(MemoryTransport(network, "a"), ["closed", "gone", "open"], strict=True)


@virtual
async def test_a_refusal_names_the_setting_that_lacks_this_peer() -> None:
    network = MemoryNetwork()
    await serving(network, "closed", allow=("closed", "other"))
    with pytest.raises(NotAllowed, match=r"closed rejects this peer, which is not in their exchange.allow: add a to "):
        await greet(MemoryTransport(network, "a"), ["gone", "closed"], strict=True)


@virtual
async def test_a_peer_that_was_removed_learns_how_it_can_return() -> None:
    network = MemoryNetwork()
    closed = await serving(network, "closed", allow=("closed", "a", "b"))
    closed.trust.allow.set_register({}, known=frozenset(), removed=frozenset("a"))
    closed.trust.allow.expel("b")
    with pytest.raises(
        NotAllowed, match=r"closed .* was removed from .*: ask the organizer .*outerloop expelled RUN_DIR --lift a\), "
    ):
        await greet(MemoryTransport(network, "a"), ["closed"], strict=True)
    with pytest.raises(NotAllowed, match=r"closed .* was expelled from the run: .* --lift b\), "):
        await greet(MemoryTransport(network, "b"), ["closed"], strict=True)


@virtual
async def test_peers_that_do_not_answer_are_asked_at_the_same_time() -> None:
    network = MemoryNetwork()
    for name in ("b", "c", "d"):
        await serving(network, name)
        network.freeze(name)
    assert not await greet(MemoryTransport(network, "a"), ["b", "c", "d", "gone"], strict=True)
    assert now_s() <= OPEN_S


@pytest.mark.parametrize("strict", [True, False])
@virtual
async def test_a_clock_that_is_far_off_is_an_error_or_a_warning(
    strict: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    network = MemoryNetwork()
    await serving(network, "b")

    async def ahead(transport: MemoryTransport, peer: str) -> float:
        return await clock_of(transport, peer) + 3.5

    monkeypatch.setattr(greeting, "clock_of", ahead)
    caplog.set_level(logging.WARNING)
    if strict:
        with pytest.raises(UserError, match=r"by \+3\.5 s; at most 3 s"):
            await greet(MemoryTransport(network, "a"), ["b"], strict=True)
    else:
        assert await greet(MemoryTransport(network, "a"), ["b"], strict=False)
        assert "+3.5 s" in caplog.text
