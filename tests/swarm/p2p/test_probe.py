"""Probes: what they find, and that no stranger gets more out of them than they grant."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from outerloop.swarm.p2p import probe
from outerloop.swarm.p2p.framing import BrokenStream, Stream
from outerloop.swarm.p2p.probe import MINUTE_BYTES, PROBE_BYTES, PROTOCOL, Probes, measure, round_trip_to
from outerloop.swarm.p2p.transport import Request, Unreachable
from outerloop.swarm.timeouts import MEASURE_S
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import now_s, virtual


async def two(network: MemoryNetwork) -> MemoryTransport:
    """ "b" answers; who asks."""

    async def seen(peer_id: str) -> str:
        return f"/ip4/192.0.2.1/tcp/{len(peer_id)}"

    await Probes(MemoryTransport(network, "b"), seen=seen).serve()
    return MemoryTransport(network, "a")


@virtual
async def test_distance_bandwidth_and_place_are_found() -> None:
    network = MemoryNetwork(delay_s=(0.05, 0.05))
    network.bytes_s |= {"a": 1e6, "b": 1e7}
    found = await measure(await two(network), "b")
    assert found.round_trip_s == pytest.approx(0.1, rel=0.1)
    assert found.up == pytest.approx(1e6, rel=0.3) and found.down == pytest.approx(1e6, rel=0.3)
    assert found.seen == "/ip4/192.0.2.1/tcp/1"


@virtual
async def test_the_round_trip_alone_is_measured_without_a_transfer() -> None:
    network = MemoryNetwork(delay_s=(0.05, 0.05))
    peer = await two(network)
    began_s = now_s()
    assert await round_trip_to(peer, "b") == pytest.approx(0.1, rel=0.1)
    assert now_s() - began_s < 1


@virtual
async def test_a_clock_that_goes_before_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, *[1000.0, 1007.0] * probe.PINGS])  # theirs with the answer; then ours, theirs
    monkeypatch.setattr(probe.time, "time", lambda: next(times))
    assert (await measure(await two(MemoryNetwork()), "b")).clock_ahead_s == pytest.approx(7, abs=0.01)


@virtual
async def test_a_minute_grants_so_much_to_all_together() -> None:
    network = MemoryNetwork()
    await two(network)
    asked = MINUTE_BYTES // PROBE_BYTES
    rates = [(await measure(MemoryTransport(network, f"stranger{i}"), "b")).up for i in range(asked + 2)]
    assert all(rates[:asked]) and rates[asked:] == [None, None]
    await asyncio.sleep(60 / asked)
    assert (await measure(MemoryTransport(network, "a"), "b")).down


@pytest.mark.parametrize("wanted", [-1, PROBE_BYTES + 1, True, 1.0, None, "1"])
@virtual
async def test_a_request_for_too_much_gets_no_answer(wanted: Any) -> None:
    async with (await two(MemoryNetwork())).open_stream("b", PROTOCOL) as stream:
        await stream.send_object({"bytes": wanted})
        with pytest.raises(BrokenStream):
            await stream.receive_object()


@pytest.mark.parametrize("clock", [None, "12", float("nan"), 7])
@pytest.mark.parametrize("seen", ["\x1b[2J", "x" * 300, 5, None])
@virtual
async def test_answers_of_a_peer_are_not_trusted(clock: Any, seen: Any) -> None:
    async def lie(remote: str, request: Request, stream: Stream) -> None:
        await stream.send_object({"bytes": 0, "seen": seen})
        for _ in range(probe.PINGS):
            await stream.receive_object()
            await stream.send_object({"clock": 5.0 if clock == 7 else clock})

    network = MemoryNetwork()
    await MemoryTransport(network, "b").serve(PROTOCOL, allowed=lambda peer_id: True, handler=lie)
    asking = measure(MemoryTransport(network, "a"), "b")
    if clock == 7:
        assert (await asking).seen == ""
    else:
        with pytest.raises(BrokenStream):
            await asking


@virtual
async def test_a_frozen_peer_costs_its_limit_and_a_dead_one_nothing() -> None:
    network = MemoryNetwork()
    asker = await two(network)
    network.freeze("b")
    with pytest.raises(TimeoutError):
        await measure(asker, "b")
    assert now_s() == pytest.approx(MEASURE_S)
    network.kill("b")
    with pytest.raises(Unreachable):
        await measure(asker, "b")
