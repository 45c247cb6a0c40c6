"""Payloads that fill every link for long: what peers say to each other about a round still gets through in time."""

import asyncio
from collections.abc import Callable

from outerloop.swarm.timeouts import LEAD_S
from tests.support.swarm.gather_scene import Swarm
from tests.support.swarm.virtual_clock import run

SIZE = 4_000_000  # more is hashed in threads, which virtual time does not wait for
LINK_BYTES_S = 1e6
ROUNDS = 4


def test_no_leader_is_given_up_on_while_payloads_move() -> None:
    """A ballot queues behind payloads on its way out, and is there before anybody takes its sender for frozen."""
    views: set[int] = set()

    async def watch(swarm: Swarm) -> None:
        while True:
            views.update(node.rounds.context.chain.view for node in swarm.nodes.values())
            await asyncio.sleep(0.25)

    async def scene() -> None:
        swarm = Swarm("abcd", quorum="all")
        for node in swarm.nodes.values():
            node.oversized = True  # all take more than others would
            swarm.network.bytes_s[node.id] = LINK_BYTES_S
            node.payload = _payload_of(node.name)  # type: ignore[method-assign]
        await swarm.start()
        watching = asyncio.create_task(watch(swarm))
        await swarm.until("abcd", ROUNDS)
        watching.cancel()
        assert [[node.who(number) for number in range(ROUNDS)] for node in swarm.nodes.values()] == [["abcd"] * 4] * 4

    assert 3 * SIZE / LINK_BYTES_S > 2 * LEAD_S, "payloads move for longer than a leader may be silent"
    run(scene())
    assert views == {0}


def _payload_of(name: str) -> Callable[[int], bytes]:
    return lambda number: f"{name} {number}".encode().ljust(SIZE)
