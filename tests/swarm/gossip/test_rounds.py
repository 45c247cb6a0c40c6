"""Gossip rounds without a real network: pairs, odd ones, dead and frozen partners, streams that break."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from outerloop.gossip_groups import group_of
from outerloop.swarm.gossip.pair import Decisions, PairState
from outerloop.swarm.p2p.framing import Stream
from outerloop.swarm.p2p.transport import Request
from outerloop.types import Contribution, Round
from tests.support.swarm.gossip_scene import Member, gather, kept, spread
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import now_s, run, virtual


@pytest.mark.parametrize("numbers", [(0, 0), (3, 11)])
@virtual
async def test_a_pair_gets_both_contributions_each_with_the_round_of_its_sender(numbers: tuple[int, int]) -> None:
    one, two = await gather(MemoryNetwork(delay_s=(0.01, 0.05)), 2)
    one.rounds, two.rounds = numbers
    landed = await asyncio.gather(one.round(b"one"), two.round(b"two"))
    expected = [
        Contribution("000-p0", Round(numbers[0]), b"one"),
        Contribution("001-p1", Round(numbers[1]), b"two"),
    ]
    assert landed == [expected, expected]
    assert one.gossip.solo_rounds == two.gossip.solo_rounds == 0
    assert not any(
        store.get(hashlib.sha256(blob).digest()) for store in (one.store, two.store) for blob in (b"one", b"two")
    )
    assert one.bulk.bytes_sent == two.bulk.bytes_sent == 3


@virtual
async def test_alone_it_waits_for_its_patience_and_no_longer() -> None:
    one, _ = await gather(MemoryNetwork(), 2)
    landed = await one.round(b"one", inner_s=40.0)
    assert landed == [Contribution("000-p0", Round(0), b"one")] and now_s() == 10.0
    assert one.gossip.solo_rounds == 1 and one.gossip.idle_s == 10.0
    (lonely,) = await gather(MemoryNetwork(), 1)
    before_s = now_s()
    await lonely.round(b"x")
    assert now_s() == before_s, "without others there is nobody to wait for"


@virtual
async def test_all_at_once_are_all_but_the_odd_one_paired() -> None:
    members = await gather(MemoryNetwork(delay_s=(0.01, 0.1)), 7)
    landed = await asyncio.gather(*(one.round(one.name.encode(), inner_s=60.0) for one in members))
    assert sorted(map(len, landed)) == [1, 2, 2, 2, 2, 2, 2]
    assert sum(one.gossip.solo_rounds for one in members) == 1
    for one in landed:
        assert landed.count(one) == len(one)


@virtual
async def test_only_the_same_fragment_meets() -> None:
    one, two = await gather(MemoryNetwork(), 2)
    landed = await asyncio.gather(
        one.gossip.run_round(Round(0, 0), b"one", timeout_s=5.0),
        two.gossip.run_round(Round(0, 1), b"two", timeout_s=5.0),
    )
    assert list(map(len, landed)) == [1, 1]


@virtual
async def test_scheduled_pairs_are_those_of_the_deal_however_unequal_the_speeds() -> None:
    members = await gather(MemoryNetwork(delay_s=(0.01, 0.1)), 5, seed=3)

    async def work(member: Member) -> list[list[Contribution]]:
        landed = []
        for number in range(12):
            await asyncio.sleep(1.0 + int(member.name[:3]))
            landed.append(await member.gossip.run_round(Round(number), member.name.encode(), timeout_s=300.0))
        return landed

    for rank, landed in enumerate(await asyncio.gather(*map(work, members))):
        for number, contributions in enumerate(landed):
            ranks = group_of(rank, size=5, group=2, seed=3, round_id=Round(number))
            assert [one.peer for one in contributions] == [members[partner].name for partner in ranks]


@virtual
async def test_a_dead_and_a_frozen_partner_cost_one_limit_in_time_and_never_the_run() -> None:
    network = MemoryNetwork(delay_s=(0.01, 0.05))
    members = await gather(network, 4)
    works = [asyncio.create_task(one.work(10.0, until_s=600.0)) for one in members]
    await asyncio.sleep(100)
    works[3].cancel()
    network.kill("p3")
    await asyncio.sleep(100)
    network.freeze("p2")
    at_freeze = [one.rounds for one in members]
    await asyncio.sleep(200)
    for one, before in zip(members[:2], at_freeze[:2], strict=True):
        assert one.rounds - before > 200 / 12.5 - 4, "one limit in time, then nothing but patience"
    network.thaw("p2")
    await asyncio.gather(*works[:3])
    for one in members[:3]:
        assert set(one.partners[-12:]) == {other.name for other in members[:3]} - {one.name}


@pytest.mark.parametrize("when", [PairState.PROPOSED, PairState.ACCEPTED])
@virtual
async def test_a_partner_that_freezes_in_the_pair_costs_one_stall(when: PairState) -> None:
    network = MemoryNetwork(delay_s=(0.5, 0.5))
    one, two = await gather(network, 2)
    rounds = [asyncio.create_task(member.round(b"x" * 10_000, inner_s=60.0)) for member in (one, two)]
    while not ((pair := one.gossip.pair) and pair.state is when):
        await asyncio.sleep(0.05)
    network.freeze("p1")
    began_s = now_s()
    assert len(await rounds[0]) == 1
    assert now_s() - began_s < 75, "at most a silent stream, the question for the last word, and its own patience"
    assert one.gossip.dropped_pairs == (when is PairState.ACCEPTED)
    rounds[1].cancel()


@pytest.mark.parametrize(("heals_after_s", "one_sided"), [(5.0, 0), (45.0, 0), (200.0, 1)])
@virtual
async def test_a_lost_decision_is_asked_for_and_only_a_long_silence_is_one_sided(
    heals_after_s: float, one_sided: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network separates the two peers at the moment at which the acceptor decides. The proposer excludes a partner
    that it lost from its next round."""
    decide = Decisions.decide
    network = MemoryNetwork(delay_s=(0.1, 0.2))
    members = await gather(network, 2)

    def decide_and_part(decisions: Decisions, proposer: str, token: bytes, *, applied: bool) -> bool:
        monkeypatch.undo()
        network.part("p0", "p1")
        asyncio.get_running_loop().call_later(heals_after_s, network.heal)
        return decide(decisions, proposer, token, applied=applied)

    monkeypatch.setattr(Decisions, "decide", decide_and_part)
    landed = await asyncio.gather(*(one.round(b"x", inner_s=60.0) for one in members))
    assert sum(map(len, landed)) == 4 - one_sided
    await asyncio.sleep(300)
    for solo in (2, 0) if one_sided else (0,):
        landed = await asyncio.gather(*(one.round(b"y", inner_s=60.0) for one in members))
        assert [len(one) for one in landed].count(1) == solo
    assert sum(one.gossip.one_sided_rounds for one in members) == one_sided


@pytest.mark.parametrize("answer", [{"sha": b"short"}, {"sha": bytes(32), "length": -1}, {"ready": 3}, {}])
@virtual
async def test_an_acceptor_that_answers_nonsense_costs_a_solo_step(answer: dict[str, object]) -> None:
    network = MemoryNetwork()
    one, _ = await gather(network, 2)

    async def nonsense(remote: str, request: Request, stream: Stream) -> None:
        await stream.send_object(answer)
        await stream.ended()

    acceptor = MemoryTransport(network, "p1")
    await acceptor.serve("outerloop/1/r/pair", allowed=lambda peer_id: True, handler=nonsense)
    async with acceptor.open_stream("p0", "outerloop/1/r/ready") as stream:
        await stream.send_object({"round": [0, 0]})
        await stream.ended()
    assert len(await one.round(b"x", inner_s=40.0)) == 1 and now_s() < 11


def test_streams_that_break_leave_few_rounds_one_sided_and_every_one_is_counted() -> None:
    """Every piece may be the last of its stream. What both sides say that they did is compared pair by pair."""

    async def scene() -> tuple[int, int, int]:
        network = MemoryNetwork(seed=5, delay_s=(0.01, 0.1), break_chance=0.02)
        members = await gather(network, 6)
        sides: dict[frozenset[tuple[str, Round]], int] = {}

        async def work(member: Member) -> None:
            for _ in range(60):
                await asyncio.sleep(member.draw.uniform(5, 15))
                landed = await member.round(member.name.encode(), inner_s=10.0)
                if len(landed) == 2:
                    key = frozenset((one.peer, one.round) for one in landed)
                    sides[key] = sides.get(key, 0) + 1

        await asyncio.gather(*map(work, members))
        one_sided = sum(count == 1 for count in sides.values())
        return one_sided, sum(one.gossip.one_sided_rounds for one in members), len(sides)

    one_sided, counted, pairs = run(scene(), limit_s=10_000)
    assert pairs > 60 and one_sided == counted == 0, (one_sided, counted, pairs)


@pytest.mark.long
@virtual
async def test_unequal_speeds_keep_their_pace_and_come_together() -> None:
    size, until_s = 7, 1500.0
    members = await gather(MemoryNetwork(seed=1, delay_s=(0.01, 0.1)), size)
    before, apart = kept(members), spread(members)
    await asyncio.gather(
        *(one.work(20.0 * (1 + 2 * index / (size - 1)), until_s=until_s) for index, one in enumerate(members))
    )
    assert all(one.gossip.idle_s < 0.2 * until_s for one in members)
    assert spread(members) < 0.01 * apart
    assert kept(members) == pytest.approx(before, abs=1e-9)
