"""Who gives what nobody can use is waited for ever more rarely; who gives good payloads is soon like the others."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from outerloop.swarm.consensus.messages import JoinRequest, ViewChange
from outerloop.swarm.gather.round_context import ReadmissionBackoff
from outerloop.swarm.strikes import MAX_ROUNDS
from tests.support.swarm.gather_liar import Liar, Said, swarm_with_liar
from tests.support.swarm.gather_scene import Swarm
from tests.support.swarm.virtual_clock import virtual

HEAD = b"h" * 32


def waits(backoff: ReadmissionBackoff, number: int, *, peer: str = "d") -> int:
    """For how many rounds from this one on it is not heard."""
    rounds = 0
    while backoff.ignores(peer, JoinRequest(number + rounds, HEAD, bytes(64)), number + rounds):
        rounds += 1
    return rounds


def test_each_refusal_doubles_the_wait_up_to_a_bound() -> None:
    backoff, number, seen = ReadmissionBackoff(), 0, []
    for _ in range(9):
        backoff.payload_rejected("d", number)
        seen.append(waits(backoff, number))
        number += seen[-1]
    assert seen == [2, 4, 8, 16, 32, MAX_ROUNDS, MAX_ROUNDS, MAX_ROUNDS, MAX_ROUNDS]
    assert waits(backoff, number, peer="a") == 0


def test_a_round_is_judged_once_and_good_payloads_take_strikes_back() -> None:
    backoff = ReadmissionBackoff()
    for number in (0, 0, 0, 1, 1):
        backoff.payload_rejected("d", number)
    assert waits(backoff, 1) == 4
    backoff.payload_stored("d", 5)
    backoff.payload_stored("d", 5)
    backoff.payload_stored("d", 4)  # of a round before the last one that was judged
    backoff.payload_rejected("d", 6)
    assert waits(backoff, 6) == 4, "two strikes, one taken back, one more"
    for number in range(10, 20):
        backoff.payload_stored("d", number)
    backoff.payload_rejected("d", 20)
    assert waits(backoff, 20) == 2, "forgotten"


def test_a_held_payload_that_turns_out_useless_counts_as_a_strike() -> None:
    backoff = ReadmissionBackoff()
    for number in range(4):
        backoff.payload_stored("d", number)
        backoff.payload_unusable("d", number)
    assert waits(backoff, 3) == 32, "two strikes a round, and one forgiven when the next payload came"
    backoff.payload_stored("d", 8)
    assert waits(backoff, 3) == 32


def test_only_asking_for_the_round_at_hand_is_not_heard() -> None:
    backoff = ReadmissionBackoff()
    backoff.payload_rejected("d", 3)
    assert backoff.ignores("d", JoinRequest(4, HEAD, bytes(64)), 4)
    assert not backoff.ignores("d", JoinRequest(3, HEAD, bytes(64)), 4), "it is told that the others are in round 4"
    assert not backoff.ignores("d", JoinRequest(5, HEAD, bytes(64)), 4) and not backoff.ignores(
        "d", ViewChange(4, HEAD, 0, bytes(64)), 4
    )
    assert not backoff.ignores("a", JoinRequest(4, HEAD, bytes(64)), 4)


async def in_roster(swarm: Swarm, liar: Liar, rounds: int) -> list[bool]:
    """Whether the liar was in the roster that decided each round, as it asks all of them all the time."""
    seen: dict[int, bool] = {}
    while len(seen) < rounds:
        hard_state = swarm["a"].rounds.context.chain.hard_state
        seen[hard_state.number] = liar.name in hard_state.roster
        for letter in "abc":
            await liar.say(letter, liar.ask(hard_state))
        await asyncio.sleep(0.5)
    swarm.agree()
    return list(seen.values())


def unsigned(liar: Liar, swarm: Swarm) -> Said:
    return lambda number: liar.offer(f"{number}".encode() * 1000)


def unsigned_at_first(liar: Liar, swarm: Swarm) -> Said:
    def says(number: int) -> object:
        return liar.offer(b"x" * 1000 if number < 2 else liar.seal(b"x" * 1000, number))

    return says


@virtual
async def test_a_peer_that_is_refused_again_and_again_is_waited_for_ever_more_rarely_and_never_votes_again() -> None:
    swarm, liar = await swarm_with_liar(unsigned)
    seen = await in_roster(swarm, liar, 40)
    assert seen[0] and not any(seen[2:]), seen
    waited_for = [number in liar.asked for number in range(40)]
    gaps = "".join("x" if one else "." for one in waited_for).split("x")
    lengths = [len(gap) for gap in gaps if gap]
    assert waited_for[0] and sum(waited_for) <= 8 and len(lengths) > 2, waited_for
    assert all(2 * before <= after for before, after in pairwise(lengths[:-1])), lengths


@virtual
async def test_a_peer_that_mends_is_let_in_and_stays() -> None:
    swarm, liar = await swarm_with_liar(unsigned_at_first)
    seen = await in_roster(swarm, liar, 16)
    assert not all(seen) and all(seen[-6:]), seen
    assert "d" in swarm["a"].who(swarm["a"].done - 1)
