"""Payloads that fill every link for long: what peers say to each other about a round still gets through in time."""

import asyncio
from collections.abc import Callable

import pytest

from outerloop.swarm.gather.ballot_rpc import MAX_SENDING
from outerloop.swarm.p2p.framing import Stream
from outerloop.swarm.timeouts import LEAD_S, SEND_S
from tests.support.swarm.gather_liar import swarm_with_liar
from tests.support.swarm.gather_scene import INNER_S, RUN, Swarm
from tests.support.swarm.virtual_clock import now_s, run

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


@pytest.mark.parametrize("trust", ["members", "nobody"])
def test_answers_that_a_liar_asks_for_and_never_reads_are_bounded_and_rounds_continue(trust: str) -> None:
    """Each wish for a far view is answered with a ballot; the streams of the answers stay open for SEND_S."""
    unread: list[float] = []

    async def never_read(remote: str, stream: Stream) -> None:
        if remote == "a":
            unread.append(now_s())
        await asyncio.sleep(10 * SEND_S)

    async def scene() -> None:
        swarm, liar = await swarm_with_liar(lambda liar, swarm: lambda number: None, trust=trust, absent_rounds=8)
        swarm.network.handlers["d", f"outerloop/1/{RUN}/ballot"] = never_read
        await swarm.until("abc", 1)
        done, began_s = swarm["b"].done, now_s()
        for _ in range(8 * MAX_SENDING):
            await liar.say("a", liar.here(swarm["a"].rounds.context.chain.hard_state, 5))
        answered = [at_s for at_s in unread if at_s >= began_s]
        window_s = SEND_S - 1.0  # each stream is open for longer than that
        at_once = max(sum(at_s <= other < at_s + window_s for other in answered) for at_s in answered)
        assert now_s() - began_s > SEND_S and len(answered) > MAX_SENDING, "answers continue once others have timed out"
        assert at_once <= MAX_SENDING
        await swarm.until("abc", done + 3, limit_s=4 * (INNER_S + 2 * LEAD_S))
        swarm.agree()

    run(scene())


def _payload_of(name: str) -> Callable[[int], bytes]:
    return lambda number: f"{name} {number}".encode().ljust(SIZE)
