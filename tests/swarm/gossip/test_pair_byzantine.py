"""A member that lies in pairs of gossip: what it can make an honest peer keep in memory, open, and wait for."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from outerloop.swarm.gossip.handshake import new_token
from outerloop.swarm.gossip.pair import MAX_DECISIONS, Decisions, Pair
from outerloop.swarm.gossip.pair_outcomes import MAX_IN_DOUBT, PairOutcomes
from outerloop.swarm.p2p.framing import BrokenStream, Stream
from outerloop.swarm.p2p.network_thread import BackgroundTasks
from outerloop.swarm.timeouts import BUSY_S
from tests.support.swarm.gossip_scene import Member, gather
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import now_s, virtual

ROUNDS = 20
BLOB = bytes(100_000)
PATIENCE_S = 10.0
DEADLINE_S = 120.0
STALLS = 4
"""Of 20 rounds, those in which the same partner can be met if it loses each pair: the 1st, 3rd, 7th and 15th."""

Handler = Callable[[str, Any, Stream], Awaitable[None]]


class Liar:
    """The last member of a scene, with handlers of a test in place of its own.

    `streams`: streams that are open to its service `verdict` now, at most so far, and in all.
    """

    def __init__(self, network: MemoryNetwork, member: Member) -> None:
        self.link = MemoryTransport(network, member.peer_id)
        self.store = member.store
        self.open = self.most = self.asked = 0
        self.proposals = BackgroundTasks()

    async def serve(self, service: str, handler: Handler) -> None:
        await self.link.serve(f"outerloop/1/r/{service}", allowed=lambda peer: True, handler=handler)

    async def notify(self, peer: str, number: int) -> None:
        """Claim to be ready for a round."""
        async with self.link.open_stream(peer, "outerloop/1/r/ready") as stream:
            await stream.send_object({"round": [number, 0]})
            await stream.ended()

    async def accept_and_fall_silent(self, remote: str, request: Any, stream: Stream) -> None:
        """Serve a payload of its own until the proposer is bound, and say nothing more."""
        blob = request["number"].to_bytes(8, "big") + BLOB
        sha = self.store.put(blob)
        await stream.send_object({"number": request["number"], "fragment": 0, "sha": sha, "length": len(blob)})
        while "have" not in await stream.receive_object():
            pass
        await stream.ended()

    async def ask_and_fall_silent(self, remote: str, request: Any, stream: Stream) -> None:
        """Answer no question about a decision, and count the streams."""
        self.open, self.asked = self.open + 1, self.asked + 1
        self.most = max(self.most, self.open)
        try:
            await stream.ended()
        finally:
            self.open -= 1

    async def propose_when_ready(self, remote: str, request: Any, stream: Stream) -> None:
        """Propose to each peer as soon as it is ready."""
        if request["round"] is not None:
            self.proposals.start(self.propose_and_stall(remote, request["round"]))

    async def propose_and_stall(self, peer: str, round: list[int]) -> None:
        """Propose a pair, and keep the peer busy for as long as it waits."""
        offer = {"number": round[0], "fragment": round[1], "sha": bytes(32), "length": 1}
        with suppress(BrokenStream):
            async with self.link.open_stream(peer, "outerloop/1/r/pair") as stream:
                await stream.send_object({"token": new_token(), **offer})
                if "sha" in await stream.receive_object():
                    await self.keep(stream, {"busy": True})

    async def queue(self, remote: str, request: Any, stream: Stream) -> None:
        """Keep each download waiting for its turn."""
        await self.keep(stream, {"wait": True})

    async def keep(self, stream: Stream, message: dict[str, bool]) -> None:
        while True:
            await stream.send_object(message)
            await asyncio.sleep(BUSY_S)


def payload_bytes() -> int:
    """Count the bytes of payloads of all pairs that are still referenced."""
    gc.collect()
    return sum(len(pair.payload or b"") for pair in gc.get_objects() if type(pair) is Pair)


async def member_and_silent_partner() -> tuple[Member, Liar]:
    """Return a member, and its only partner, which accepts each pair and falls silent before it answers again."""
    network = MemoryNetwork()
    one, other = await gather(network, 2)
    liar = Liar(network, other)
    await liar.serve("pair", liar.accept_and_fall_silent)
    await liar.serve("verdict", liar.ask_and_fall_silent)
    return one, liar


async def meet(one: Member, liar: Liar) -> None:
    """Run one round of 40 s, at whose end the liar claims to be ready."""
    await liar.notify(one.peer_id, one.rounds)
    await one.round(b"x", inner_s=4 * PATIENCE_S)


@virtual
async def test_a_partner_that_falls_silent_after_have_leaves_no_payload_in_memory() -> None:
    """Before: one payload for each pair, for as long as the partner did not answer."""
    one, liar = await member_and_silent_partner()
    for _ in range(ROUNDS):
        await meet(one, liar)
    assert one.gossip.dropped_pairs == STALLS and payload_bytes() == 0


@virtual
async def test_many_notices_of_a_partner_in_doubt_open_one_stream_to_it_at_a_time() -> None:
    """Before: one stream for each notice and each pair in doubt."""
    one, liar = await member_and_silent_partner()
    await meet(one, liar)
    assert one.gossip.dropped_pairs == 1
    liar.most = liar.asked = 0
    for _ in range(60):
        await asyncio.gather(*(liar.notify(one.peer_id, 1) for _ in range(50)))
    await asyncio.sleep(60)
    assert liar.most == liar.asked == 1


@virtual
async def test_an_acceptor_is_asked_about_a_bounded_number_of_pairs_in_doubt() -> None:
    """The latest pairs are remembered, of each acceptor by itself."""
    network = MemoryNetwork()
    asked: dict[str, list[bytes]] = {"b": [], "c": []}
    for name, tokens in asked.items():

        async def answer(remote: str, request: Any, stream: Stream, tokens: list[bytes] = tokens) -> None:
            tokens.append(request["token"])
            await stream.send_object({"applied": True})
            await stream.ended()

        link = MemoryTransport(network, name)
        await link.serve("outerloop/1/r/verdict", allowed=lambda peer: True, handler=answer)
    outcomes = PairOutcomes(MemoryTransport(network, "a"), run="r", allowed=lambda peer: True)
    tokens = [number.to_bytes(8, "big") for number in range(MAX_IN_DOUBT + 3)]
    outcomes.doubt(Pair.proposed_to("c", tokens[0]))
    for token in tokens:
        outcomes.doubt(Pair.proposed_to("b", token))
    for _ in range(2):
        outcomes.resolve("b")
        outcomes.resolve("c")
        await asyncio.sleep(1)
    assert asked == {"b": tokens[3:], "c": tokens[:1]}
    assert outcomes.one_sided == MAX_IN_DOUBT + 1


@virtual
async def test_a_partner_that_stalls_every_pair_costs_few_rounds() -> None:
    """Before: each of the 20 rounds of each honest peer took as long as a pair may take, and was a solo step."""
    network = MemoryNetwork(delay_s=(0.01, 0.1))
    *honest, last = await gather(network, 3, deadline_s=DEADLINE_S)
    liar = Liar(network, last)
    await liar.serve("ready", liar.propose_when_ready)
    await liar.serve("bulk", liar.queue)

    async def work(member: Member) -> None:
        for _ in range(ROUNDS):
            await member.round(member.name.encode(), inner_s=4 * PATIENCE_S)

    await asyncio.gather(*map(work, honest))
    for one in honest:
        assert 0 < one.gossip.dropped_pairs <= STALLS
        assert one.gossip.idle_s <= STALLS * DEADLINE_S + ROUNDS * PATIENCE_S
        assert len(one.partners) > ROUNDS / 2, "the two honest peers meet in most of their rounds"
    assert now_s() < ROUNDS * DEADLINE_S / 2


def test_questions_of_one_member_do_not_erase_decisions_on_pairs_of_others() -> None:
    """Before: 1,000 random tokens did, and the proposer of an applied pair learned that it was not applied."""
    decisions = Decisions()
    decisions.decide("honest", b"token", applied=True)
    for number in range(20 * MAX_DECISIONS):
        decisions.decide("liar", number.to_bytes(8, "big"), applied=False)
    assert decisions.decide("honest", b"token", applied=False)
