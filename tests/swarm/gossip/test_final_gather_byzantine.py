"""A member that lies in an assembly: it can hand in a bad share of its own, and touch nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from outerloop.swarm.gossip.final_gather import WAITS
from outerloop.swarm.gossip.share_collection import NAMED, ShareCollection
from outerloop.swarm.gossip.signed_shares import SignedShare, signed
from outerloop.swarm.p2p.framing import Stream
from tests.support.swarm.final_gather_scene import SIZE, Member, gather, who
from tests.support.swarm.memory_network import MemoryNetwork
from tests.support.swarm.virtual_clock import now_s, virtual

Tells = Callable[[Member], Awaitable[dict[str, Any]]]
PROTOCOL = "outerloop/1/r/assembly"
BULK = "outerloop/1/r/bulk"


def share_of(owner: Member, blob: bytes, *, number: int = 1) -> list[Any]:
    """What it signs of these bytes, which it gives."""
    link = owner.link
    sha, signatures = owner.store.put(blob), link.trust.signatures
    return signed(link.peer_id, number, sha, len(blob), members=owner.members, signatures=signatures).to_list()


def own_share(liar: Member) -> list[Any]:
    """What it may hand in."""
    return share_of(liar, liar.blob)


async def lie(liar: Member, tells: Tells) -> None:
    """Answer whoever asks, from now on, with this."""
    told = await tells(liar)

    async def answer(remote: str, request: Any, stream: Stream) -> None:
        await stream.send_object(told)
        await stream.ended()

    await liar.link.serve(PROTOCOL, allowed=lambda peer: True, handler=answer)


async def only_its_own(liar: Member) -> dict[str, Any]:
    share = own_share(liar)
    return {"share": share, "settled": True, "held": [share]}


async def nobody(liar: Member) -> dict[str, Any]:
    return {"share": own_share(liar), "settled": True, "held": []}


@pytest.mark.parametrize("tells", [only_its_own, nobody])
@virtual
async def test_a_list_that_leaves_members_out_leaves_nobody_out(tells: Tells) -> None:
    """Confirmed against a list that was believed: three honest peers had p3's weights alone, or nobody's."""
    members = await gather(MemoryNetwork(delay_s=(0.01, 0.1)), 4, wait_s=50.0)
    await lie(members[3], tells)
    met = await asyncio.gather(*(one.meet(after_s=5.0 * index) for index, one in enumerate(members[:3])))
    assert list(map(who, met)) == [[0, 1, 2, 3]] * 3


FALSE = bytes([7]) * SIZE


def named(owner: Member, liar: Member, share: list[Any]) -> list[Any]:
    """The liar holds these bytes, and says that they are the owner's share."""
    liar.store.put(FALSE)
    return [owner.link.peer_id, *share[1:]]


async def signed_by_the_liar(owner: Member, liar: Member) -> list[Any]:
    return named(owner, liar, share_of(liar, FALSE))


async def not_signed(owner: Member, liar: Member) -> list[Any]:
    return [*named(owner, liar, share_of(liar, FALSE))[:3], bytes(64)]


async def with_the_signature_of_another_share(owner: Member, liar: Member) -> list[Any]:
    return [*named(owner, liar, share_of(liar, FALSE))[:3], share_of(owner, owner.blob)[3]]


async def of_another_meeting(owner: Member, liar: Member) -> list[Any]:
    liar.store.put(owner.blob)
    return share_of(owner, owner.blob, number=2)


async def as_a_payload(owner: Member, liar: Member) -> list[Any]:
    """Signed by the right one for another purpose."""
    said = "payload", "r", 1, "002-p2", liar.store.put(FALSE), SIZE
    return ["p2", *said[4:], owner.link.trust.signatures.sign(*said)]


FORGERIES = [
    signed_by_the_liar, not_signed, with_the_signature_of_another_share, of_another_meeting, as_a_payload,
]  # fmt: skip


@pytest.mark.parametrize("forge", FORGERIES)
@virtual
async def test_nobody_speaks_for_a_member_that_is_gone(forge: Callable[[Member, Member], Awaitable[list[Any]]]) -> None:
    """p2 is dead, and p0 shows bytes of its own making as what p2 brought: refused, by the name of p0, not fetched."""
    network = MemoryNetwork(delay_s=(0.01, 0.1))
    liar, honest, owner = await gather(network, 3, wait_s=50.0)
    network.kill("p2")

    async def tells(liar: Member) -> dict[str, Any]:
        return {"share": own_share(liar), "settled": True, "held": [await forge(owner, liar)]}

    await lie(liar, tells)
    assert who(await honest.meet()) == [0, 1]
    refusals = honest.link.trust.rejections
    assert refusals.of_kind["payloads"] == 1 and {name for _, name in refusals.logged} == {"000-p0"}
    assert honest.bulk.bytes_received == SIZE, "p0's own share"


@virtual
async def test_a_share_that_another_holds_is_found_beside_false_hints() -> None:
    """p3 gives its share to p0 and dies; p4 says that it holds others. Those who come later get it from p0."""
    network = MemoryNetwork(delay_s=(0.01, 0.1))
    members = await gather(network, 5, wait_s=200.0)

    async def tells(liar: Member) -> dict[str, Any]:
        false = [["p3", bytes([number]) * 32, SIZE, bytes(64)] for number in range(9)]
        return {"share": own_share(liar), "settled": True, "held": false}

    await lie(members[4], tells)
    early = [asyncio.create_task(members[index].meet()) for index in (0, 3)]
    await asyncio.sleep(10)
    network.kill("p3")
    early[1].cancel()
    met = await asyncio.gather(early[0], *(one.meet() for one in members[1:3]))
    assert list(map(who, met)) == [[0, 1, 2, 3, 4]] * 3


async def never_settles(liar: Member) -> dict[str, Any]:
    return {"share": own_share(liar), "settled": False, "held": []}


@pytest.mark.parametrize(("dead", "least_s", "most_s"), [(False, 0, 20), (True, 60, 120)])
@virtual
async def test_one_that_never_settles_costs_one_wait_and_only_where_a_share_is_missing(
    dead: bool, least_s: float, most_s: float
) -> None:
    network = MemoryNetwork(delay_s=(0.01, 0.1))
    members = await gather(network, 4, wait_s=60.0)
    await lie(members[3], never_settles)
    if dead:
        network.kill("p2")
    there = [0, 1] if dead else [0, 1, 2]
    met = await asyncio.gather(*(members[index].assembly.run(1, members[index].blob) for index in there))
    assert list(map(who, met)) == [[*there, 3]] * len(there)
    assert least_s <= now_s() < most_s


@pytest.mark.parametrize(
    "told",
    [
        {"share": ["p2", b"short", 5, bytes(64)]},
        {"share": ["p2", bytes(32), -1, bytes(64)]},
        {"share": ["p2", bytes(32), 3, b""]},
        {"share": ["p1", bytes(32), 3, bytes(64)]},
        {"share": ["p2", bytes(32), 3, bytes(64)], "held": [["p1", bytes(32)]]},
        {"share": ["p2", bytes(32), 3, bytes(64)], "held": 7},
    ],
    ids=["sha", "length", "signature", "another's", "entry", "no list"],
)
@virtual
async def test_one_that_tells_nonsense_is_gone(told: dict[str, Any]) -> None:
    members = await gather(MemoryNetwork(delay_s=(0.01, 0.1)), 3, wait_s=90.0)

    async def tells(liar: Member) -> dict[str, Any]:
        return told

    await lie(members[2], tells)
    met = await asyncio.gather(*(one.meet() for one in members[:2]))
    assert list(map(who, met)) == [[0, 1]] * 2


@virtual
async def test_a_share_larger_than_allowed_is_refused_by_name_and_not_fetched() -> None:
    members = await gather(MemoryNetwork(delay_s=(0.01, 0.1)), 2, wait_s=50.0)

    async def tells(liar: Member) -> dict[str, Any]:
        return {"share": share_of(liar, bytes(10 * SIZE)), "settled": True, "held": []}

    await lie(members[1], tells)
    assert who(await members[0].meet()) == [0]
    refusals = members[0].link.trust.rejections
    assert refusals.of_kind["payloads"] == 1 and members[0].bulk.bytes_received == 0


@virtual
async def test_nothing_is_kept_of_assemblies_that_this_peer_has_not_come_to() -> None:
    one, other = await gather(MemoryNetwork(), 2, wait_s=50.0)
    for number in range(100):
        link = other.link
        async with link.open_stream("p0", PROTOCOL) as stream:
            await stream.send_object({"number": number, "share": share_of(other, other.blob)})
            assert await stream.receive_object() == {}
    await asyncio.sleep(10)
    assert not one.assembly._collections and one.bulk.bytes_received == 0  # noqa: SLF001


@virtual
async def test_a_peer_that_asks_forever_delays_the_others_by_one_wait_at_most() -> None:
    one, other = await gather(MemoryNetwork(), 2, wait_s=50.0)
    await lie(other, nobody)
    assert who(await one.assembly.run(1, one.blob)) == [0, 1]

    async def ask_for_ever() -> None:
        while True:
            async with other.link.open_stream("p0", PROTOCOL) as stream:
                await stream.send_object({"number": 1, "missing": ["p0"] * 3})
                await stream.receive_object()
            await asyncio.sleep(1)

    asking = asyncio.create_task(ask_for_ever())
    await asyncio.sleep(5)
    began_s = now_s()
    await one.assembly.linger()
    assert now_s() - began_s <= 51
    asking.cancel()


async def give_nothing(liar: Member) -> None:
    """Let everybody wait for a transfer, and say so."""

    async def give(remote: str, request: Any, stream: Stream) -> None:
        while True:
            await stream.send_object({"wait": True})
            await asyncio.sleep(10)

    await liar.link.serve(BULK, allowed=lambda peer: True, handler=give)


async def state_late(liar: Member, after_s: float) -> None:
    """Nothing until then."""
    await give_nothing(liar)
    told = {"share": own_share(liar), "settled": False, "held": []}

    async def answer(remote: str, request: Any, stream: Stream) -> None:
        await stream.send_object(told if now_s() > after_s else {})
        await stream.ended()

    await liar.link.serve(PROTOCOL, allowed=lambda peer: True, handler=answer)


@virtual
async def test_liars_that_state_their_shares_late_and_send_nothing_end_no_meeting() -> None:
    """Before: each prolonged it by as much as a fetch may take, beyond what the exchange waits for."""
    members = await gather(MemoryNetwork(delay_s=(0.01, 0.1)), 7, wait_s=60.0)
    for liar, after_s in zip(members[4:], (55.0, 110.0, 165.0), strict=True):
        await state_late(liar, after_s)
    met = await asyncio.gather(*(one.assembly.run(1, one.blob) for one in members[:4]))
    assert list(map(who, met)) == [[0, 1, 2, 3]] * 4
    assert now_s() < WAITS * 60 + 10


@virtual
async def test_an_owner_that_signs_different_shares_for_different_members_is_left_out_by_all() -> None:
    """Before: one half averaged with one of them, the other half with the other, and nothing told so."""
    members = await gather(MemoryNetwork(delay_s=(0.01, 0.1)), 5, wait_s=50.0)
    liar, honest = members[4], members[:4]
    shares = [share_of(liar, liar.blob), share_of(liar, FALSE)]

    async def answer(remote: str, request: Any, stream: Stream) -> None:
        await stream.send_object({"share": shares[remote in ("p2", "p3")], "settled": True, "held": []})
        await stream.ended()

    await liar.link.serve(PROTOCOL, allowed=lambda peer: True, handler=answer)
    met = await asyncio.gather(*(one.assembly.run(1, one.blob) for one in honest))
    assert list(map(who, met)) == [[0, 1, 2, 3]] * 4 and now_s() < 20
    for one in honest:
        assert ("payloads", "004-p4") in one.link.trust.rejections.logged


@virtual
async def test_an_owner_that_cannot_be_reached_for_a_while_is_asked_again() -> None:
    """Its share is on its way when it is cut off, and the third is still to come. Before: one attempt at each share."""
    network = MemoryNetwork(delay_s=(0.01, 0.1))
    network.bytes_s["p1"] = 30e3
    members = await gather(network, 3, wait_s=100.0)
    meeting = [asyncio.create_task(one.meet()) for one in members[:2]]
    await asyncio.sleep(8)
    network.kill("p1")
    await asyncio.sleep(15)
    network.cut.clear()
    assert who(await meeting[0]) == [0, 1]


@virtual
async def test_a_request_that_comes_after_its_sender_was_done_keeps_nobody() -> None:
    one, other = await gather(MemoryNetwork(), 2, wait_s=50.0)
    await asyncio.gather(*(member.assembly.run(1, member.blob) for member in (one, other)))
    async with other.link.open_stream("p0", PROTOCOL) as stream:
        await stream.send_object({"number": 1, "missing": []})
        assert await stream.receive_object()
    began_s = now_s()
    await one.assembly.linger()
    assert now_s() == began_s


@virtual
async def test_all_members_are_asked_after_in_turn() -> None:
    others = [f"p{index:04d}" for index in range(3 * NAMED - 5)]
    here = ShareCollection(
        SignedShare("own", bytes(32), 0, bytes(64)), b"", others, share_error=lambda share: "", reject=print
    )
    for _ in range(2):
        windows = [here.members_to_ask("p0000") for _ in range(5)]
        assert {peer for window in windows for peer in window} == set(others)
        assert all(len(set(window)) == NAMED for window in windows)
        here.settle()


@virtual
async def test_as_many_liars_as_there_are_slots_keep_no_share_away_by_giving_slowly() -> None:
    """They state first and let everybody wait. Before: others' shares waited for a slot until nobody tried again."""
    members = await gather(MemoryNetwork(delay_s=(0.01, 0.1)), 12, wait_s=100.0)
    for liar in members[4:]:
        await give_nothing(liar)
    for liar in members[4:]:
        await lie(liar, nobody)
    met = await asyncio.gather(*(one.assembly.run(1, one.blob) for one in members[:4]))
    assert list(map(who, met)) == [[0, 1, 2, 3]] * 4
    assert now_s() < WAITS * 100 + 10
