"""Assemblies at the end of a run: whoever is left gets the same shares, whoever is dead, frozen or late."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from outerloop.types import Contribution
from tests.support.swarm.final_gather_scene import gather, who
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import now_s, run, virtual


@pytest.mark.parametrize("size", [1, 2, 5])
@virtual
async def test_all_meet_whenever_they_come(size: int) -> None:
    members = await gather(MemoryNetwork(delay_s=(0.01, 0.1)), size)
    met = await asyncio.gather(*(one.meet(after_s=40.0 * ((index + 3) % size)) for index, one in enumerate(members)))
    assert list(map(who, met)) == [list(range(size))] * size
    assert now_s() < 40 * size


@pytest.mark.parametrize("dead", [0, 1, 3])
@pytest.mark.parametrize("how", ["kill", "freeze"])
@virtual
async def test_a_dead_or_frozen_peer_is_left_out_and_the_others_have_the_same_shares(how: str, dead: int) -> None:
    network = MemoryNetwork(delay_s=(0.01, 0.1))
    members = await gather(network, 4)
    getattr(network, how)(f"p{dead}")
    met = await asyncio.gather(*(one.meet() for index, one in enumerate(members) if index != dead))
    assert list(map(who, met)) == [[index for index in range(4) if index != dead]] * 3
    assert now_s() < 120


@pytest.mark.parametrize("after_s", [0.02, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0])
@virtual
async def test_one_that_dies_in_the_middle_leaves_the_others_with_the_same(after_s: float) -> None:
    """Whenever it dies, the others end with the same shares, the dead one's among them or not."""
    network = MemoryNetwork(delay_s=(0.1, 0.4))
    network.bytes_s["p0"] = 1e6
    members = await gather(network, 4)
    works = [asyncio.create_task(one.meet()) for one in members]
    await asyncio.sleep(after_s)
    network.kill("p0")
    works[0].cancel()
    met = await asyncio.gather(*works[1:])
    assert len(set(map(str, map(who, met)))) == 1 and {1, 2, 3} <= set(who(met[0]))


def test_a_peer_that_comes_too_late_gets_the_shares_of_the_others() -> None:
    async def scene() -> None:
        members = await gather(MemoryNetwork(delay_s=(0.01, 0.1)), 3, wait_s=50.0)
        met = await asyncio.gather(
            members[0].meet(), members[1].meet(), members[2].assembly.run(1, b""), return_exceptions=True
        )
        assert [len(cast(list[Contribution], one)) for one in met] == [3, 3, 3]

    run(scene())

    async def late() -> None:
        members = await gather(MemoryNetwork(delay_s=(0.01, 0.1)), 3, wait_s=50.0)
        early = [asyncio.create_task(one.assembly.run(1, one.blob)) for one in members[:2]]
        assert [who(met) for met in await asyncio.gather(*early)] == [[0, 1]] * 2 and now_s() < 120
        assert who(await members[2].meet()) == [0, 1, 2], "its own weights count for itself"

    run(late())


@virtual
async def test_a_member_that_has_not_come_is_left_out_and_gets_the_shares_later() -> None:
    members = await gather(MemoryNetwork(delay_s=(0.01, 0.1)), 3, wait_s=50.0)
    met = await asyncio.gather(*(one.meet() for one in members[1:]))
    assert list(map(who, met)) == [[1, 2]] * 2
    assert who(await members[0].meet()) == [0, 1, 2]


@virtual
async def test_streams_that_break_are_tried_again() -> None:
    members = await gather(MemoryNetwork(seed=2, delay_s=(0.01, 0.1), break_chance=0.05), 5)
    met = await asyncio.gather(*(one.meet(after_s=5.0 * index) for index, one in enumerate(members)))
    assert list(map(who, met)) == [[0, 1, 2, 3, 4]] * 5


@virtual
async def test_a_late_joiner_that_keeps_asking_keeps_nobody_from_leaving() -> None:
    """It has no share in this gather, so no member waits until it has fetched one."""
    network = MemoryNetwork()
    members = await gather(network, 3)
    met = [asyncio.create_task(one.assembly.run(1, one.blob)) for one in members[:2]]
    network.kill("p2")
    assert [who(await one) for one in met] == [[0, 1]] * 2
    late = MemoryTransport(network, "late")
    members[0].members.names["late"] = "003-late"
    async with late.open_stream("p0", "outerloop/1/r/assembly") as stream:
        await stream.send_object({"number": 1, "missing": []})
        assert (await stream.receive_object())["settled"] is True
    before_s = now_s()
    await members[0].assembly.linger()
    assert now_s() == before_s
