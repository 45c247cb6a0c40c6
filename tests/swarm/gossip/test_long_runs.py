"""Gossip for long, on the virtual clock: unequal speeds, and a network in which something is always wrong."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from outerloop.swarm.gossip.pair import PairState
from outerloop.types import Round
from tests.support.swarm.gossip_scene import Member, gather, kept, spread
from tests.support.swarm.memory_network import MemoryNetwork
from tests.support.swarm.virtual_clock import now_s, run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("size", [7, 8])
@pytest.mark.parametrize("seed", [0, 1])
def test_unequal_speeds_for_hours(size: int, seed: int) -> None:
    """Inner times of 20 s to 60 s for three hours: nobody idles above 20 %, the spread stays where it was after a tenth
    of that, and what pairs and solo steps must leave as it is does not move."""

    async def scene() -> None:
        until_s = 3 * 3600.0
        members = await gather(MemoryNetwork(seed=seed, delay_s=(0.01, 0.1)), size)
        before, spreads = kept(members), []

        async def watch() -> None:
            while now_s() < until_s:
                await asyncio.sleep(until_s / 10)
                spreads.append(spread(members))

        works = [one.work(20.0 * (1 + 2 * i / (size - 1)), until_s=until_s, noise=0.1) for i, one in enumerate(members)]
        await asyncio.gather(watch(), *works)
        assert max(one.gossip.idle_s for one in members) < 0.2 * until_s
        assert sum(one.gossip.solo_rounds for one in members) < 0.2 * sum(one.rounds for one in members)
        assert max(spreads) < 2 * spreads[0]
        assert kept(members) == pytest.approx(before, abs=1e-9)

    run(scene(), limit_s=1e6)


def test_in_a_bad_network_hardly_a_pair_is_one_sided_and_each_is_counted() -> None:
    """Streams break at one piece in fifty; every few minutes two peers cannot reach each other for a hundred seconds,
    longer than the last word is asked for; now and then one is frozen. What both sides did is compared pair by pair."""

    async def scene() -> tuple[int, int, int]:
        draw, until_s = random.Random(0), 4 * 3600.0
        network = MemoryNetwork(seed=0, delay_s=(0.01, 0.5), break_chance=0.02)
        members = await gather(network, 8)
        sides: Counter[frozenset[tuple[str, Round]]] = Counter()

        async def work(member: Member) -> None:
            while now_s() < until_s:
                await asyncio.sleep(member.draw.uniform(5, 25))
                landed = await member.round(member.name.encode(), inner_s=15.0)
                sides[frozenset((one.peer, one.round) for one in landed)] += len(landed) == 2

        async def harm() -> None:
            while now_s() < until_s - 600:
                one, other = draw.sample([member.peer_id for member in members], 2)
                network.part(one, other)
                if draw.random() < 0.2:
                    network.freeze(one)
                await asyncio.sleep(100)
                network.heal()
                network.thaw(one)
                await asyncio.sleep(60)

        await asyncio.gather(harm(), *map(work, members))
        one_sided = sum(count == 1 for count in sides.values())
        counted = sum(one.gossip.one_sided_rounds for one in members)
        return one_sided, counted, sum(count > 0 for count in sides.values())

    one_sided, counted, pairs = run(scene(), limit_s=1e6)
    assert pairs > 1000 and one_sided == counted <= 0.001 * pairs


@pytest.mark.parametrize("seed", range(3))
def test_a_peer_cut_off_in_the_middle_of_many_pairs_counts_every_one_sided_pair(seed: int) -> None:
    """Messages take seconds, so pairs take long; two that are in one cannot reach each other for 150 s."""

    async def scene() -> tuple[int, int]:
        draw, until_s = random.Random(seed), 3600.0
        network = MemoryNetwork(seed=seed, delay_s=(0.5, 3.0), break_chance=0.02)
        members = await gather(network, 8)
        sides: Counter[frozenset[tuple[str, Round]]] = Counter()

        async def work(member: Member) -> None:
            while now_s() < until_s:
                await asyncio.sleep(member.draw.uniform(5, 25))
                landed = await member.round(member.name.encode(), inner_s=60.0)
                sides[frozenset((one.peer, one.round) for one in landed)] += len(landed) == 2

        async def harm() -> None:
            while now_s() < until_s - 600:
                paired = [(one.peer_id, one.gossip.pair) for one in members if one.gossip.pair]
                if in_pairs := [(peer, pair.partner) for peer, pair in paired if pair.state is not PairState.PROPOSED]:
                    network.part(*draw.choice(in_pairs))
                    await asyncio.sleep(150)
                    network.heal()
                await asyncio.sleep(draw.uniform(5, 20))

        await asyncio.gather(harm(), *map(work, members))
        return sum(count == 1 for count in sides.values()), sum(one.gossip.one_sided_rounds for one in members)

    one_sided, counted = run(scene(), limit_s=1e6)
    assert one_sided == counted > 0
