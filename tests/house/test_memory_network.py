"""The network in memory does what it is told, in virtual time, and the same again for the same seed."""

import asyncio

import pytest

from outerloop.swarm.p2p.framing import BrokenStream, Stream
from outerloop.swarm.p2p.transport import Request, Unreachable
from outerloop.swarm.timeouts import OPEN_S, STALL_S
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import now_s, run, virtual

MEGABYTE = 1_000_000


async def serving(network: MemoryNetwork, size: int = 0, error: Exception | None = None) -> MemoryTransport:
    """Peer "b" answers every request with so many bytes; the result is peer "a"."""

    async def answer(remote: str, request: Request, stream: Stream) -> None:
        if error:
            raise error
        await stream.send(bytes(size))
        await stream.ended()

    await MemoryTransport(network, "b").serve("p", allowed=lambda peer_id: peer_id == "a", handler=answer)
    return MemoryTransport(network, "a")


async def ask(a: MemoryTransport) -> int:
    async with a.open_stream("b", "p") as stream:
        await stream.send_object({})
        return len(await stream.receive(at_most=100 * MEGABYTE))


def test_time_is_what_was_waited_for() -> None:
    async def scene() -> None:
        await asyncio.gather(asyncio.sleep(7), asyncio.sleep(86400))
        assert now_s() == 86400

    run(scene(), limit_s=100_000)


def test_waiting_for_ever_ends_at_the_limit() -> None:
    with pytest.raises(TimeoutError):
        run(asyncio.Event().wait(), limit_s=5)


def test_a_handler_that_fails_fails_the_test() -> None:
    async def scene() -> None:
        with pytest.raises(BrokenStream, match="nothing was received"):
            await ask(await serving(MemoryNetwork(), error=ZeroDivisionError()))

    with pytest.raises(ZeroDivisionError):
        run(scene())


@virtual
async def test_delay_and_bandwidth_take_their_time() -> None:
    network = MemoryNetwork(delay_s=(0.5, 0.5))
    network.bytes_s["b"] = MEGABYTE
    a = await serving(network, 10 * MEGABYTE)
    assert await ask(a) == 10 * MEGABYTE
    assert 10.9 < now_s() < 11.1, "0.5 s there, 10 s at 1 MB/s, 0.5 s back"
    await asyncio.gather(ask(a), ask(a))
    assert 31.9 < now_s() < 32.2, "two streams share the bandwidth of one peer"


@virtual
async def test_a_slow_reader_holds_the_writer_back() -> None:
    network = MemoryNetwork()
    a = await serving(network, 10 * MEGABYTE)
    async with a.open_stream("b", "p") as stream:
        await stream.send_object({})
        await asyncio.sleep(STALL_S / 2)
        assert network.waiting_bytes < 2 * MEGABYTE
        assert len(await stream.receive(at_most=10 * MEGABYTE)) == 10 * MEGABYTE


@virtual
async def test_partitions_heal_and_frozen_peers_thaw() -> None:
    network = MemoryNetwork()
    a = await serving(network, 10)
    network.part("a", "b")
    with pytest.raises(BrokenStream, match=f"could not open a stream within {OPEN_S:.0f} s"):
        await ask(a)
    network.heal()
    network.freeze("b")
    with pytest.raises(BrokenStream, match="nothing was received"):
        await ask(a)
    assert now_s() == OPEN_S + STALL_S
    asking = asyncio.create_task(ask(a))
    await asyncio.sleep(1)
    network.thaw("b")
    assert await asking == 10 and now_s() == OPEN_S + STALL_S + 1
    network.kill("b")
    with pytest.raises(Unreachable):
        await ask(a)


@virtual
async def test_a_killed_peer_ends_its_streams() -> None:
    network = MemoryNetwork()
    network.bytes_s["b"] = MEGABYTE
    asking = asyncio.create_task(ask(await serving(network, 10 * MEGABYTE)))
    await asyncio.sleep(5)
    network.kill("b")
    with pytest.raises(BrokenStream, match="early"):
        await asking
    assert now_s() == 5


def test_the_same_seed_gives_the_same_run() -> None:
    async def scene(seed: int) -> list[tuple[float, bool]]:
        a = await serving(MemoryNetwork(seed=seed, delay_s=(0.01, 0.1), break_chance=0.05), MEGABYTE)
        seen = []
        for _ in range(20):
            try:
                seen.append((now_s(), await ask(a) == MEGABYTE))
            except BrokenStream:
                seen.append((now_s(), False))
        return seen

    first, again, other = run(scene(1)), run(scene(1)), run(scene(2))
    assert first == again and first != other
    assert {whole for _, whole in first} == {True, False}
