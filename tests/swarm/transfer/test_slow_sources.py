"""Who gives slowly, or says that it holds what nobody has, keeps no content of others away; a slow link is enough."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from outerloop.swarm.p2p.framing import END_MARK, PIECE_BYTES, Stream
from outerloop.swarm.p2p.transport import Request
from outerloop.swarm.timeouts import PULL_S, STALL_S, TRANSFER_S
from outerloop.swarm.transfer.sources import ContentUnavailable
from outerloop.swarm.transfer.uploads import RateLimiter
from tests.support.swarm.bulk_scene import PROTOCOL, Node, nodes, some_bytes
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import now_s, virtual

SLOW_LINK = 125_000.0
"""1 Mbit/s."""
QUICK_S = 2.0


async def trickler(network: MemoryNetwork, name: str, content: bytes, *, waits: bool = False) -> None:
    """A holder that gives the right bytes as slowly as it may, or says for ever that others come first."""

    async def give(remote: str, request: Request, stream: Stream) -> None:
        while waits:
            await stream.send_object({"wait": True})
            await asyncio.sleep(STALL_S - 1)
        await stream.send_object({"length": len(content)})
        for start in range(request["offset"], len(content), PIECE_BYTES):
            await stream.write(content[start : start + PIECE_BYTES])
            await asyncio.sleep(STALL_S - 1)
        await stream.write(END_MARK)
        await stream.ended()

    await MemoryTransport(network, name).serve(PROTOCOL, allowed=lambda peer_id: True, handler=give)


async def honest(network: MemoryNetwork, names: str) -> list[bytes]:
    """One content of each, from itself alone."""
    contents = [some_bytes(500_000, seed) for seed in range(len(names))]
    for name, content in zip(names, contents, strict=True):
        node = Node(network, name)
        await node.bulk.serve()
        node.store.put(content)
    return contents


async def get_all(asker: Node, contents: Sequence[bytes], names: str) -> float:
    """Every content from its owner; how long that took."""
    began_s = now_s()
    pairs = zip(contents, names, strict=True)
    assert await asyncio.gather(*(asker.get(content, [name]) for content, name in pairs)) == list(contents)
    return now_s() - began_s


@pytest.mark.parametrize("waits", [False, True])
@virtual
async def test_eight_that_give_slowly_cost_one_turn_in_a_life(waits: bool) -> None:
    network = MemoryNetwork()
    (a,) = await nodes(network, "a")
    contents = await honest(network, "bcdefghijklm")
    for name in "stuvwxyz":
        await trickler(network, name, slow := some_bytes(10_000_000, ord(name)), waits=waits)
        asyncio.create_task(a.get(slow, [name]))  # noqa: RUF006
    await asyncio.sleep(1)
    assert a.bulk.slots.taken == 8
    assert await get_all(a, contents, "bcdefghijklm") < TRANSFER_S + STALL_S
    for name, again in zip("bcdefghijklm", contents, strict=True):
        assert await get_all(a, [again], name) < QUICK_S
    assert a.bulk.slots.taken >= 4, "the slow ones go on"


@virtual
async def test_a_holder_of_contents_that_nobody_has_keeps_no_slot_of_others() -> None:
    network = MemoryNetwork()
    (a,) = await nodes(network, "a")
    contents = await honest(network, "bcdefghijklm")
    await trickler(network, "z", some_bytes(1_000_000), waits=True)
    for seed in range(20):
        made_up = some_bytes(1_000_000, 1000 + seed)
        asyncio.create_task(a.get(made_up, ["z", *"bcdefghijklm"]))  # noqa: RUF006
    await asyncio.sleep(1)
    assert await get_all(a, contents, "bcdefghijklm") < QUICK_S


@pytest.mark.parametrize("waits", [False, True])
@virtual
async def test_a_slow_holder_is_left_for_one_that_may_be_faster(waits: bool) -> None:
    network, content = MemoryNetwork(), some_bytes(10_000_000)
    a, _ = await nodes(network, "ac", content)
    await trickler(network, "b", content, waits=waits)
    assert await a.get(content, ["b", "c"]) == content
    assert TRANSFER_S <= now_s() < TRANSFER_S + STALL_S
    assert await a.get(content, ["b", "c"]) == content
    assert now_s() < TRANSFER_S + STALL_S + QUICK_S, "and asked last from then on"


@virtual
async def test_a_holder_that_is_named_while_a_content_waits_is_asked() -> None:
    network, content = MemoryNetwork(), some_bytes(1000)
    a, _ = await nodes(network, "ac", content)
    await trickler(network, "b", slow := some_bytes(1_000_000, 1), waits=True)
    asyncio.create_task(a.get(slow, ["b"]))  # noqa: RUF006
    await asyncio.sleep(1)
    holders = ["b"]
    getting = asyncio.create_task(a.get(content, holders))
    await asyncio.sleep(1)
    holders.append("c")
    assert await getting == content and now_s() < 2 + 2 * QUICK_S


@virtual
async def test_an_unreachable_holder_is_tried_with_pauses_while_another_is_busy() -> None:
    class Cut(set[str]):
        dials = 0

        def __contains__(self, peer: object) -> bool:
            self.dials += peer == "c"
            return peer == "c"

    network, content = MemoryNetwork(), some_bytes(1000)
    (a,) = await nodes(network, "a")
    network.cut = cut = Cut()
    await trickler(network, "b", slow := some_bytes(1_000_000, 1), waits=True)
    for one, holders in ((slow, ["b"]), (content, ["b", "c"])):
        asyncio.create_task(a.get(one, holders))  # noqa: RUF006
        await asyncio.sleep(1)
    await asyncio.sleep(4)
    assert 2 <= cut.dials <= 10


@virtual
async def test_a_large_content_comes_over_a_slow_link_that_seven_share() -> None:
    """It takes longer than PULL_S, and nothing is given up or sent twice."""
    network, content = MemoryNetwork(), some_bytes(12_000_000)
    (giver,) = await nodes(network, "g", limiter=RateLimiter(SLOW_LINK))
    giver.store.put(content)
    askers = await nodes(network, "abcdefh")
    got = await asyncio.gather(*(asker.get(content, ["g"], timeout_s=PULL_S) for asker in askers))
    assert got == [content] * 7 and network.opened == 7
    assert now_s() > PULL_S


@virtual
async def test_large_contents_of_several_come_over_one_slow_link() -> None:
    """All of them at once; together they take longer than any may be silent."""
    network = MemoryNetwork()
    a, *givers = await nodes(network, "abcd")
    contents = [some_bytes(10_000_000, seed) for seed in range(3)]
    for giver, content in zip(givers, contents, strict=True):
        giver.store.put(content)
    network.bytes_s["a"] = SLOW_LINK
    gets = [a.get(content, [name], timeout_s=60) for content, name in zip(contents, "bcd", strict=True)]
    assert await asyncio.gather(*gets) == contents and now_s() > 60 and network.opened == 3


@virtual
async def test_over_a_slow_link_of_two_holders_little_is_sent_twice() -> None:
    network, content = MemoryNetwork(), some_bytes(20_000_000)
    a, *others = await nodes(network, "abc", content)
    for name in "bc":
        network.bytes_s[name] = SLOW_LINK
    assert await a.get(content, ["b", "c"]) == content
    assert now_s() < 1.5 * len(content) / SLOW_LINK
    assert sum(other.bulk.bytes_sent for other in others) < 1.5 * len(content)


@virtual
async def test_the_wait_for_a_slot_is_no_silence_of_the_holder() -> None:
    network = MemoryNetwork()
    a, giver = await nodes(network, "ab")
    contents = [some_bytes(size, size) for size in (10_000_000, 100_000)]
    for content in contents:
        giver.store.put(content)
    network.bytes_s["b"] = SLOW_LINK
    first = asyncio.create_task(a.get(contents[0], ["b"]))
    await asyncio.sleep(1)
    assert await a.get(contents[1], ["b"], timeout_s=20) == contents[1]
    assert now_s() > TRANSFER_S and await first == contents[0]


@virtual
async def test_a_holder_that_makes_others_wait_forever_is_given_up() -> None:
    network, content = MemoryNetwork(), some_bytes(1000)
    (a,) = await nodes(network, "a")
    await trickler(network, "b", content, waits=True)
    with pytest.raises(ContentUnavailable, match="no further bytes within 100 s"):
        await a.get(content, ["b"], timeout_s=100)
    assert now_s() == 100
