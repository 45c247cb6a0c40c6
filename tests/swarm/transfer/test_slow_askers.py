"""Who asks for much, and reads slowly or nothing, keeps no content from others; all that ask get an equal share."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from outerloop.swarm.p2p.framing import PIECE_BYTES, BrokenStream, Stream
from outerloop.swarm.p2p.stream_gate import MEMBER_STREAMS
from outerloop.swarm.timeouts import STALL_S, TRANSFER_S
from outerloop.swarm.transfer.upload_slots import UploadSlots
from outerloop.swarm.transfer.uploads import RateLimiter
from tests.support.swarm.bulk_scene import PROTOCOL, nodes, sha_of, some_bytes
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import now_s, virtual


async def read_slowly(stream: Stream, size: int, pause_s: float) -> None:
    """Read the answer to a request, with a pause after each piece; never close the stream."""
    while (await stream.receive_object()).get("wait"):
        pass
    arrived = 0
    async for some in stream.pieces(size):
        arrived += len(some)
        if arrived % PIECE_BYTES == 0:
            await asyncio.sleep(pause_s)
    await asyncio.sleep(10 * STALL_S)


async def ask_again_and_again(network: MemoryNetwork, content: bytes, pause_s: float) -> None:
    """Ask "g" for some content, and as soon as the stream ends, once more."""
    while True:
        with suppress(BrokenStream):
            async with MemoryTransport(network, "m").open_stream("g", PROTOCOL) as stream:
                await stream.send_object({"sha": sha_of(content), "offset": 0})
                await read_slowly(stream, len(content), pause_s)


@pytest.mark.parametrize("pause_s", [0, STALL_S - 1, 10 * STALL_S], ids=["never closes", "slowly", "nothing"])
@pytest.mark.parametrize("size", [1000, 4_000_000])
@virtual
async def test_one_that_reads_slowly_on_all_its_streams_keeps_no_slot_from_another(size: int, pause_s: float) -> None:
    network, contents = MemoryNetwork(), [some_bytes(size, 1), some_bytes(1_000_000, 2)]
    a, giver = await nodes(network, "ag", contents[0])
    giver.store.put(contents[1])
    for _ in range(MEMBER_STREAMS):
        asyncio.create_task(ask_again_and_again(network, contents[0], pause_s))  # noqa: RUF006
    await asyncio.sleep(1)
    assert giver.bulk.uploads.slots.free == 0
    for _ in range(3):
        began_s = now_s()
        assert await a.get(contents[1], ["g"]) == contents[1]
        assert now_s() - began_s < 2 * STALL_S


@virtual
async def test_the_one_slot_of_a_slow_link_goes_round_among_those_that_ask() -> None:
    """One asks on many streams, and two for one content each: each gets about a third of the link."""
    network, content, rate = MemoryNetwork(), some_bytes(2_000_000), 20_000
    giver, *_ = await nodes(network, "g", limiter=RateLimiter(rate))
    giver.store.put(content)
    for _ in range(MEMBER_STREAMS):
        asyncio.create_task(ask_again_and_again(network, content, 0))  # noqa: RUF006
    askers = await nodes(network, "ab")
    assert await asyncio.gather(*(asker.get(content, ["g"]) for asker in askers)) == [content] * 2
    assert now_s() < 4.5 * len(content) / rate


@virtual
async def test_two_that_ask_for_much_share_the_slots_after_one_turn() -> None:
    slots = UploadSlots(8)
    first = [slots.request("a") for _ in range(12)]
    assert [slot.done() for slot in first] == [True] * 8 + [False] * 4
    await asyncio.sleep(TRANSFER_S)
    assert not slots.turn_over("a", first[0]), "only its own requests are waiting"
    second = [slots.request("b") for _ in range(12)]
    for slot in first[:4]:
        assert slots.turn_over("a", slot)
        slots.release("a", slot)
    assert [slot.done() for slot in second] == [True] * 4 + [False] * 8
    assert not slots.turn_over("a", first[4]), "each has four"
    for slot in second:
        slots.release("b", slot)
    assert all(slot.done() for slot in first)


@virtual
async def test_a_turn_is_not_cut_short() -> None:
    slots = UploadSlots(1)
    running, waiting = slots.request("a"), slots.request("b")
    await asyncio.sleep(TRANSFER_S - 1)
    assert not slots.turn_over("a", running)
    await asyncio.sleep(1)
    assert slots.turn_over("a", running)
    slots.release("b", waiting)
    assert not slots.turn_over("a", running), "no other peer is waiting any more"


@virtual
async def test_a_stream_that_stays_open_after_the_last_piece_is_no_transfer() -> None:
    """Each round waits longer for its leader while transfers are under way (gather/round_timers.py)."""
    network, content = MemoryNetwork(), some_bytes(1000)
    (giver,) = await nodes(network, "g")
    giver.store.put(content)
    async with MemoryTransport(network, "m").open_stream("g", PROTOCOL) as stream:
        await stream.send_object({"sha": sha_of(content), "offset": 0})
        assert await stream.receive_object() == {"length": 1000}
        async for _ in stream.pieces(1000):
            pass
        await asyncio.sleep(10)
        assert giver.bulk.bytes_sent == 1000 and giver.bulk.moving_s == 0
