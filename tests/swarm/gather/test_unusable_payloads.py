"""A peer whose payload no one else can use: too large, or other bytes than it says. It is left out, and named."""

import asyncio

import pytest

from outerloop.swarm.timeouts import LEAD_S
from tests.support.swarm.gather_scene import INNER_S, Swarm
from tests.support.swarm.virtual_clock import now_s, virtual

pytestmark = pytest.mark.long

GRACE_S, QUICK_S = 3.0, 2.0


async def turned(swarm: Swarm, letter: str, fault: str) -> None:
    """From now on its payloads are of no use, or of use again."""
    await swarm[letter].kill()
    swarm[letter].oversized, swarm[letter].corrupt = fault == "oversized", fault == "corrupt"
    await swarm[letter].restart()


def refused(swarm: Swarm, by: str, whom: str) -> int:
    """How often, if by name."""
    refusals = swarm[by].rounds.context.trust.rejections
    told = {name for _, name in refusals.logged}
    return refusals.of_kind["payloads"] + refusals.of_kind["ballots"] if told == {swarm[whom].name} else 0


@pytest.mark.parametrize("fault", ["oversized", "corrupt"])
@pytest.mark.parametrize("who", ["leader", "follower"])
@virtual
async def test_it_costs_the_others_a_grace_and_a_view_at_most_and_it_is_named(who: str, fault: str) -> None:
    swarm = await Swarm("abcd", absent_rounds=8).start()
    await swarm.until("abcd", 2)
    leader = swarm.leader("abcd")
    bad = leader if who == "leader" else next(letter for letter in "abcd" if letter != leader)
    rest = "abcd".replace(bad, "")
    await turned(swarm, bad, fault)
    took_s = await swarm.until(rest, 3)
    assert took_s < INNER_S + GRACE_S + (LEAD_S if who == "leader" else 0) + QUICK_S
    for number in range(4, 8):
        assert await swarm.until(rest, number) < INNER_S + GRACE_S + LEAD_S + QUICK_S
    await swarm.until(bad, 7)
    assert all(swarm[rest[0]].who(number) == rest for number in range(2, 7))
    assert all(3 <= refused(swarm, one, bad) <= 12 for one in rest), "once or twice a round"
    await turned(swarm, bad, "")
    await swarm.until("abcd", 10)
    assert swarm["a"].who(9) == "abcd"
    swarm.agree()


@pytest.mark.parametrize("fault", ["oversized", "corrupt"])
@virtual
async def test_it_is_not_counted_on_any_more_and_comes_back(fault: str) -> None:
    swarm = await Swarm("abcde").start()
    await swarm.until("abcde", 1)
    await turned(swarm, "c", fault)
    await swarm.until("abde", 4)
    assert swarm["a"].who(3) == "abde"
    await turned(swarm, "c", "")
    await swarm.until("abcde", swarm["a"].done + 6)  # two refusals: it is not heard for four rounds
    assert swarm["a"].who(swarm["a"].done - 1) == "abcde"
    swarm.agree()


@pytest.mark.parametrize("fault", ["oversized", "corrupt"])
@pytest.mark.parametrize("seed", range(3))
@virtual
async def test_among_broken_streams_and_deaths_the_others_go_on_all_the_same(seed: int, fault: str) -> None:
    swarm = await Swarm("abcde", seed=seed, break_chance=0.01).start()
    bad, dies = "abcde"[seed], "abcde"[seed + 1]
    await swarm.until("abcde", 1)
    await turned(swarm, bad, fault)
    rest = "abcde".replace(bad, "").replace(dies, "")
    await asyncio.sleep(15)
    await swarm[dies].kill()
    began_s = now_s()
    goal = max(node.done for node in swarm.nodes.values()) + 6
    await swarm.until(rest, goal, limit_s=300)
    assert now_s() - began_s < 7 * (INNER_S + GRACE_S + 3 * LEAD_S + QUICK_S)
    await swarm[dies].restart()
    await turned(swarm, bad, "")
    await swarm.until("abcde", goal + 4, limit_s=300)
    swarm.agree()
