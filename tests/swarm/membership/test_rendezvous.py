"""Meetings in memory, on a virtual clock: everybody who is alive is seen, and nobody else is waited for."""

import asyncio

from outerloop.swarm.membership.rendezvous import Rendezvous
from outerloop.swarm.timeouts import GONE_AFTER_S, LINGER_S, MEET_S
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import now_s, virtual

NAMES = ["000-a", "001-b", "002-c"]


async def three(network: MemoryNetwork) -> list[Rendezvous]:
    made = [
        Rendezvous(
            MemoryTransport(network, name[4:]), run="r", own=name, allowed=lambda peer: peer in "abc", max_bytes=1000
        )
        for name in NAMES
    ]
    for one in made:
        await one.serve()
    return made


@virtual
async def test_all_meet_and_leave_at_once() -> None:
    a, b, c = await three(MemoryNetwork())
    waiting = [
        asyncio.create_task(one.meet(1, name.encode(), NAMES)) for one, name in zip((a, b), NAMES[:2], strict=True)
    ]
    await asyncio.sleep(20)
    assert not any(task.done() for task in waiting)
    met = await c.meet(1, NAMES[2].encode(), NAMES)
    assert met == {name: name.encode() for name in NAMES} == await waiting[0] == await waiting[1]
    await asyncio.gather(*(one.linger() for one in (a, b, c)))
    assert now_s() < 21
    assert await a.meet(2, b"alone", NAMES[:1]) == {NAMES[0]: b"alone"}


@virtual
async def test_a_peer_that_is_gone_frozen_or_ahead_is_left_out() -> None:
    network = MemoryNetwork()
    a, b, _ = await three(network)
    network.kill("c")
    met = await asyncio.gather(*(one.meet(1, b"x", NAMES) for one in (a, b)))
    assert list(met[0]) == list(met[1]) == NAMES[:2] and GONE_AFTER_S < now_s() < 2 * GONE_AFTER_S
    network.freeze("b")
    assert list(await a.meet(2, b"x", NAMES[:2])) == NAMES[:1] and MEET_S < now_s() < MEET_S + 2 * GONE_AFTER_S
    network.thaw("b")
    await b.meet(9, b"x", [NAMES[1]])
    assert list(await a.meet(3, b"x", NAMES[:2])) == NAMES[:1]


@virtual
async def test_a_peer_waits_a_limited_time_until_its_message_was_read() -> None:
    a, b, _ = await three(MemoryNetwork())
    meeting = asyncio.create_task(a.meet(1, b"x", NAMES[:2]))
    await b.meet(1, b"y", [NAMES[1]])
    assert await meeting == {NAMES[0]: b"x", NAMES[1]: b"y"}
    began_s = now_s()
    await a.linger()
    assert abs(now_s() - began_s - LINGER_S) < 0.1, "b has not looked"
