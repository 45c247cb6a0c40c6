"""Newcomers on a virtual clock: they are counted before they vote, and who vanishes again stops nobody."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.swarm.gather_scene import INNER_S, RUN, Node, Swarm
from tests.support.swarm.virtual_clock import now_s, run, virtual

pytestmark = pytest.mark.long

HOUR_S = 3600.0


async def newcomer(swarm: Swarm, name: str, *, inner_s: float = INNER_S) -> Node:
    """A peer with the state as of the last commit, which trains and asks to be counted on."""
    for node in swarm.nodes.values():
        node.names[name.partition("-")[2]] = name
    teller = min(swarm.nodes.values(), key=lambda node: node.name)
    one = Node(swarm.network, name, teller.names.values(), teller.rules, inner_s=inner_s)
    await one.appear()
    decided = teller.rounds.context.chain.hard_state.log[-1]
    await one.rounds.follow_from(decided, session=RUN)
    one.rounds.state_arrived()
    one.training = asyncio.create_task(one.train(decided.commit.number + 1))
    return one


async def rounds_until(end_s: float, *, vanish_after_s: float | None) -> int:
    """Five peers; d and e die after three rounds. With a time, f comes just then, and vanishes that much later."""
    swarm = await Swarm("abcde").start()
    await swarm.until("abcde", 3)
    await swarm["d"].kill()
    await swarm["e"].kill()
    if vanish_after_s is not None:
        f = await newcomer(swarm, "005-f")
        await asyncio.sleep(vanish_after_s)
        await f.kill()
    await asyncio.sleep(end_s - now_s())
    swarm.agree()
    assert all(swarm[letter].done == swarm["a"].done for letter in "abc"), swarm.describe()
    assert {"000-a", "001-b", "002-c"} == set(swarm["a"].rounds.roster)
    return swarm["a"].done


@pytest.mark.parametrize("end_s", [300.0, pytest.param(HOUR_S, marks=pytest.mark.slow)])
def test_a_newcomer_that_vanishes_costs_nothing_where_three_of_five_are_alive(end_s: float) -> None:
    control = run(rounds_until(end_s, vanish_after_s=None), limit_s=2 * end_s)
    assert control > 0.85 * end_s / INNER_S
    assert run(rounds_until(end_s, vanish_after_s=2.0), limit_s=2 * end_s) == control


@pytest.mark.parametrize("dead", ["", "e", "de"])
def test_whatever_round_a_newcomer_vanishes_in_the_others_go_on(dead: str) -> None:
    for rounds, into_s in ((0, 0.05), (0, INNER_S / 2), (1, 0.5), (2, INNER_S + 0.1)):
        vanish(dead, rounds, into_s)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", range(5))
@pytest.mark.parametrize("into_s", [0.05, 0.5, INNER_S / 2, INNER_S - 0.1, INNER_S + 0.1])
@pytest.mark.parametrize("dead", ["", "e", "de"])
def test_the_same_at_many_more_moments(dead: str, into_s: float, rounds: int) -> None:
    vanish(dead, rounds, into_s)


def vanish(dead: str, rounds: int, into_s: float) -> None:
    """Some of five die, f comes, and vanishes so many rounds and seconds later: six more rounds take no longer.

    f leaves the roster once three of the others have led without it, one after the other.
    """

    async def scene() -> None:
        swarm = await Swarm("abcde").start()
        await swarm.until("abcde", 2)
        for letter in dead:
            await swarm[letter].kill()
        rest = [letter for letter in "abcde" if letter not in dead]
        f = await newcomer(swarm, "005-f")
        await swarm.until("".join(rest), 2 + rounds)
        await asyncio.sleep(into_s)
        await f.kill()
        done = swarm["a"].done
        await swarm.until("".join(rest), done + 6, limit_s=6 * (INNER_S + 8) + 20)
        assert "f" not in swarm["a"].who(done + 5)
        while "005-f" in swarm["a"].rounds.roster:
            await swarm.until("".join(rest), swarm["a"].done + 1, limit_s=INNER_S + 28)
            assert swarm["a"].done < done + 20, "it never leaves"
        swarm.agree()

    run(scene())


@virtual
async def test_a_peer_that_asks_and_never_sends_a_payload_soon_costs_nothing() -> None:
    """Without it, 300 s have 28 rounds of 10 s and some messages; a grace period of 3 s in each makes it 22."""
    swarm = await Swarm("abc").start()
    await swarm.until("abc", 2)
    began = swarm["a"].done
    z = await newcomer(swarm, "009-z", inner_s=HOUR_S)
    await asyncio.sleep(300)
    assert swarm["a"].done - began >= 27, swarm.describe()
    assert not z.error and all("z" not in swarm["a"].who(number) for number in range(began, swarm["a"].done))
    swarm.agree()


@pytest.mark.parametrize("inner_s", [0.4 * INNER_S, INNER_S, INNER_S + 2, 2.5 * INNER_S])
@pytest.mark.parametrize("letters", ["a", "abc"])
@virtual
async def test_whoever_comes_is_counted_and_then_votes_however_fast_it_is(letters: str, inner_s: float) -> None:
    """A lone peer too: one may always join it."""
    swarm = await Swarm(letters).start()
    await swarm.until(letters, 2)
    z = await newcomer(swarm, "009-z", inner_s=inner_s)
    began = swarm["a"].done
    voting: list[int] = []
    while not voting:
        await swarm.until(letters, swarm["a"].done + 1)
        roster = swarm["a"].rounds.roster
        voting = [swarm["a"].done] if "009-z" in roster else []
        assert swarm["a"].done < began + 6, "it is never counted"
    assert any("z" in swarm["a"].who(number) for number in range(began, voting[0])), "it votes before it is counted"
    await swarm.until(letters, swarm["a"].done + 2)
    assert not z.error
    swarm.agree()
