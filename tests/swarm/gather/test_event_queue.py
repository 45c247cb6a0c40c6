"""Messages of others wait in turn: a flood of one member is its own loss."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop.swarm.consensus.messages import MAX_MESSAGE_BYTES
from outerloop.swarm.gather.event_queue import MAX_BYTES, MAX_WAITING, EventQueue
from tests.support.swarm.gather_liar import swarm_with_liar
from tests.support.swarm.virtual_clock import run, virtual


def taken(queue: EventQueue[str], count: int) -> list[str]:
    async def take() -> list[str]:
        return [await queue.get() for _ in range(count)]

    return run(take())


def test_senders_take_turns_and_own_events_go_first() -> None:
    queue: EventQueue[str] = EventQueue()
    for number in range(3):
        queue.put_from("liar", f"l{number}")
    queue.put_from("a", "a0")
    queue.put_from("b", "b0")
    queue.put_from("a", "a1")
    queue.put("timer")
    assert taken(queue, 7) == ["timer", "l0", "a0", "b0", "l1", "a1", "l2"]


def test_a_flood_is_dropped_and_others_wait_for_one_message_of_it() -> None:
    queue: EventQueue[str] = EventQueue()
    kept = [queue.put_from("liar", "l") for _ in range(10_000)]
    assert kept == [[]] * MAX_WAITING + [["liar"]] * (10_000 - MAX_WAITING)
    assert not queue.put_from("a", "a") and taken(queue, 2) == ["l", "a"]


def test_however_many_senders_there_are_what_waits_is_bounded_and_the_fullest_loses() -> None:
    """A thousand identities that each send the longest message as often as they may, and an honest peer."""
    queue: EventQueue[int] = EventQueue()
    dropped: list[str] = []
    for _ in range(MAX_WAITING):
        for number in range(200):
            dropped += queue.put_from(f"liar {number}", MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES)
        dropped += queue.put_from("honest", 1000, 1000)
    assert "honest" not in dropped and len(dropped) > 200 * MAX_WAITING - MAX_BYTES // MAX_MESSAGE_BYTES - 1
    waits = taken(queue, 201 * MAX_WAITING - len(dropped))
    assert waits.count(1000) == MAX_WAITING and MAX_BYTES - 2 * MAX_MESSAGE_BYTES < sum(waits) <= MAX_BYTES
    assert queue.put_from("liar 0", 1, MAX_BYTES) == [], "all that waited has been taken"


@virtual
async def test_a_waiting_reader_gets_the_next_event() -> None:
    queue: EventQueue[str] = EventQueue()
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(1)
    assert not waiting.done()
    queue.put_from("a", "a")
    assert await waiting == "a"


@settings(max_examples=50, deadline=None)
@given(senders=st.lists(st.integers(0, 3), max_size=3 * MAX_WAITING))
def test_messages_of_a_sender_keep_their_order_and_none_waits_longer_than_a_turn(senders: list[int]) -> None:
    queue: EventQueue[tuple[str, int]] = EventQueue()
    put = [(f"{sender}", number) for number, sender in enumerate(senders)]
    kept = [one for one in put if not queue.put_from(one[0], one)]

    async def take() -> list[tuple[str, int]]:
        return [await queue.get() for _ in kept]

    came = run(take())
    for sender in {name for name, _ in put}:
        of_one = [one for one in came if one[0] == sender]
        assert of_one == [one for one in kept if one[0] == sender]
        others = len({name for name, _ in kept} - {sender})
        places = [index for index, one in enumerate(came) if one[0] == sender]
        assert all(later - earlier <= others + 1 for earlier, later in pairwise(places))
    assert sorted(came) == sorted(kept)


@virtual
async def test_a_member_that_floods_a_peer_is_refused_by_name_and_the_rounds_go_on() -> None:
    swarm, liar = await swarm_with_liar(lambda liar, swarm: lambda number: None)
    rounds = swarm["a"].rounds
    old = rounds.context.chain.hard_state.log[-1]
    for _ in range(1000):
        rounds.context.receive(liar.name, old)
    assert rounds.context.trust.rejections.of_kind["ballots"] == 1000 - MAX_WAITING
    await swarm.until("abc", 2)
    swarm.agree()
