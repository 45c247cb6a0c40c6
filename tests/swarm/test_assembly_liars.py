"""A member that lies in an assembly: it can hand in a bad share of its own, and touch nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from memory_network import MemoryNetwork
from test_assembly import SIZE, Member, gather, who
from virtual_clock import now_s, run

from outerloop.swarm.framing import Stream
from outerloop.swarm.sealed import sealed

Tells = Callable[[Member], Awaitable[dict[str, Any]]]
PROTOCOL = "outerloop/1/r/assembly"


async def own_share(liar: Member) -> list[Any]:
    """What it may hand in."""
    content = await liar.assembly._shares.seal(1, liar.blob)
    return [liar.store.put(content), len(content)]


async def lie(liar: Member, tells: Tells) -> None:
    """Answer whoever asks, from now on, with this."""
    told = await tells(liar)

    async def answer(remote: str, request: Any, stream: Stream) -> None:
        await stream.send_object(told)
        await stream.ended()

    await liar.assembly._transport.serve(PROTOCOL, allowed=lambda peer: True, handler=answer)


async def only_its_own(liar: Member) -> dict[str, Any]:
    sha, length = await own_share(liar)
    return {"share": [sha, length], "settled": True, "held": [], "met": [["p3", sha, length]]}


async def nobody(liar: Member) -> dict[str, Any]:
    return {"share": await own_share(liar), "settled": True, "held": [], "met": []}


@pytest.mark.parametrize("tells", [only_its_own, nobody])
def test_a_list_that_leaves_members_out_leaves_nobody_out(tells: Tells) -> None:
    """Confirmed against a list that was believed: three honest peers had p3's weights alone, or nobody's."""

    async def scene() -> None:
        members = await gather(MemoryNetwork(delay_s=(0.01, 0.1)), 4, wait_s=50.0)
        await lie(members[3], tells)
        met = await asyncio.gather(*(one.meet(after_s=5.0 * index) for index, one in enumerate(members[:3])))
        assert list(map(who, met)) == [[0, 1, 2, 3]] * 3

    run(scene())


async def other_bytes(owner: Member, liar: Member) -> bytes:
    return bytes([7]) * SIZE


async def signed_by_the_liar(owner: Member, liar: Member) -> bytes:
    return await liar.assembly._shares.seal(1, bytes([7]) * SIZE)


async def of_another_meeting(owner: Member, liar: Member) -> bytes:
    return await owner.assembly._shares.seal(2, owner.blob)


async def as_a_payload(owner: Member, liar: Member) -> bytes:
    """Signed by the right one for another purpose."""
    signatures = owner.assembly._transport.trust.signatures
    return sealed(owner.blob, signatures, sitting="r", number=1, peer="002-p2")


@pytest.mark.parametrize("forge", [other_bytes, signed_by_the_liar, of_another_meeting, as_a_payload])
def test_nobody_speaks_for_a_member_that_is_gone(forge: Callable[[Member, Member], Awaitable[bytes]]) -> None:
    """p2 is dead, and p0 shows bytes of its own making as what p2 brought: refused, by the name of p0."""

    async def scene() -> None:
        network = MemoryNetwork(delay_s=(0.01, 0.1))
        liar, honest, owner = await gather(network, 3, wait_s=50.0)
        network.kill("p2")

        async def tells(liar: Member) -> dict[str, Any]:
            shown = await forge(owner, liar)
            held = [["p2", liar.store.put(shown), len(shown)]]
            return {"share": await own_share(liar), "settled": True, "held": held}

        await lie(liar, tells)
        assert who(await honest.meet()) == [0, 1]
        refusals = honest.assembly._transport.trust.refusals
        assert refusals.of_kind["payloads"] == 1 and {name for _, name in refusals._told} == {"000-p0"}

    run(scene())


def test_a_share_that_another_holds_is_found_beside_false_hints() -> None:
    """p3 gives its share to p0 and dies; p4 says that it holds others. Those who come later get it from p0."""

    async def scene() -> None:
        network = MemoryNetwork(delay_s=(0.01, 0.1))
        members = await gather(network, 5, wait_s=200.0)

        async def tells(liar: Member) -> dict[str, Any]:
            false = [["p3", bytes([number]) * 32, SIZE] for number in range(9)]
            return {"share": await own_share(liar), "settled": True, "held": false}

        await lie(members[4], tells)
        early = [asyncio.create_task(members[index].meet()) for index in (0, 3)]
        await asyncio.sleep(10)
        network.kill("p3")
        early[1].cancel()
        met = await asyncio.gather(early[0], *(one.meet() for one in members[1:3]))
        assert list(map(who, met)) == [[0, 1, 2, 3, 4]] * 3

    run(scene())


async def never_settles(liar: Member) -> dict[str, Any]:
    return {"share": await own_share(liar), "settled": False, "held": []}


@pytest.mark.parametrize(("dead", "least_s", "most_s"), [(False, 0, 20), (True, 60, 120)])
def test_one_that_never_settles_costs_one_wait_and_only_where_a_share_is_missing(
    dead: bool, least_s: float, most_s: float
) -> None:
    async def scene() -> None:
        network = MemoryNetwork(delay_s=(0.01, 0.1))
        members = await gather(network, 4, wait_s=60.0)
        await lie(members[3], never_settles)
        if dead:
            network.kill("p2")
        there = [0, 1] if dead else [0, 1, 2]
        met = await asyncio.gather(*(members[index].assembly.meet(1, members[index].blob) for index in there))
        assert list(map(who, met)) == [[*there, 3]] * len(there)
        assert least_s <= now_s() < most_s

    run(scene())


@pytest.mark.parametrize(
    "told",
    [
        {"share": [b"short", 5]},
        {"share": [bytes(32), -1]},
        {"share": [bytes(32), 3], "held": [["p1", bytes(32)]]},
        {"share": [bytes(32), 3], "held": 7},
    ],
    ids=["sha", "length", "entry", "no list"],
)
def test_one_that_tells_nonsense_is_gone(told: dict[str, Any]) -> None:
    async def scene() -> None:
        members = await gather(MemoryNetwork(delay_s=(0.01, 0.1)), 3, wait_s=90.0)

        async def tells(liar: Member) -> dict[str, Any]:
            return told

        await lie(members[2], tells)
        met = await asyncio.gather(*(one.meet() for one in members[:2]))
        assert list(map(who, met)) == [[0, 1]] * 2

    run(scene())


def test_a_share_larger_than_allowed_is_refused_by_name_and_not_fetched() -> None:
    async def scene() -> None:
        members = await gather(MemoryNetwork(delay_s=(0.01, 0.1)), 2, wait_s=50.0)

        async def tells(liar: Member) -> dict[str, Any]:
            return {"share": [liar.store.put(bytes(10 * SIZE)), 10 * SIZE], "settled": True, "held": []}

        await lie(members[1], tells)
        assert who(await members[0].meet()) == [0]
        refusals = members[0].assembly._transport.trust.refusals
        assert refusals.of_kind["payloads"] == 1 and members[0].bulk.bytes_received == 0

    run(scene())


def test_nothing_is_kept_of_assemblies_that_this_peer_has_not_come_to() -> None:
    async def scene() -> None:
        one, other = await gather(MemoryNetwork(), 2, wait_s=50.0)
        for number in range(100):
            link = other.assembly._transport
            async with link.open_stream("p0", PROTOCOL) as stream:
                await stream.send_object({"number": number, "share": [bytes(32), 9]})
                assert await stream.receive_object() == {}
        assert not one.assembly._collections and not one.assembly._fetches

    run(scene())


def test_who_asks_for_ever_keeps_nobody_for_longer_than_a_wait() -> None:
    async def scene() -> None:
        one, other = await gather(MemoryNetwork(), 2, wait_s=50.0)
        await lie(other, nobody)
        assert who(await one.assembly.meet(1, one.blob)) == [0, 1]

        async def ask_for_ever() -> None:
            while True:
                async with other.assembly._transport.open_stream("p0", PROTOCOL) as stream:
                    await stream.send_object({"number": 1, "missing": ["p0"] * 3})
                    await stream.receive_object()
                await asyncio.sleep(1)

        asking = asyncio.create_task(ask_for_ever())
        await asyncio.sleep(5)
        began_s = now_s()
        await one.assembly.linger()
        assert now_s() - began_s <= 51
        asking.cancel()

    run(scene())
