"""Notices of readiness: one that could not be delivered is repeated, and a dead peer costs few of them."""

from __future__ import annotations

import asyncio
from typing import Any

from outerloop.swarm.gossip.ready_broadcast import MAX_REPEATS, ReadyBroadcast
from outerloop.swarm.timeouts import UNHEARD_S
from outerloop.types import Round
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import virtual

ENOUGH_S = 100 * UNHEARD_S


class Counting(ReadyBroadcast):
    """A broadcast that lists the notices that it has tried to send."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.tried: list[Round | None] = []

    async def _send(self, peer: str, round: Round | None) -> None:
        self.tried.append(round)
        await super()._send(peer, round)


async def two(network: MemoryNetwork) -> tuple[Counting, list[Round | None]]:
    """The broadcast of peer a, and the notices that peer b receives."""
    heard: list[Round | None] = []

    def on_notice(peer: str, round: Round | None) -> None:
        heard.append(round)

    one, other = (
        Counting(MemoryTransport(network, name), run="r", allowed=lambda peer: True, on_notice=on_notice)
        for name in "ab"
    )
    await other.serve()
    return one, heard


@virtual
async def test_a_notice_that_could_not_be_delivered_is_repeated() -> None:
    network = MemoryNetwork()
    one, heard = await two(network)
    network.cut.add("b")
    one.send(["b"], Round(3))
    await asyncio.sleep(UNHEARD_S / 2)
    assert not heard
    network.cut.clear()
    await asyncio.sleep(ENOUGH_S)
    assert heard == [Round(3)]


@virtual
async def test_only_the_latest_state_is_repeated() -> None:
    network = MemoryNetwork()
    one, heard = await two(network)
    network.cut.add("b")
    one.send(["b"], Round(3))
    await asyncio.sleep(UNHEARD_S / 2)
    one.send(["b"], None)
    network.cut.clear()
    await asyncio.sleep(ENOUGH_S)
    assert heard == [None]


@virtual
async def test_a_peer_that_is_gone_is_sent_few_notices_until_there_is_news() -> None:
    network = MemoryNetwork()
    one, heard = await two(network)
    network.cut.add("b")
    one.send(["b"], Round(3))
    await asyncio.sleep(ENOUGH_S)
    assert one.tried == [Round(3)] * (1 + MAX_REPEATS)
    network.cut.clear()
    one.send(["b"], Round(4))
    await asyncio.sleep(ENOUGH_S)
    assert heard == [Round(4)]
