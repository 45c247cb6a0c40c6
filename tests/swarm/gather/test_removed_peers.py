"""Peers that are removed while rounds go on: what was decided with them stays, and what follows is decided without."""

from __future__ import annotations

import asyncio

from tests.support.swarm.gather_scene import Node, Swarm
from tests.support.swarm.virtual_clock import run


def remove(node: Node, peer: str) -> None:
    node.rounds.context.trust.allow.set_register({}, known=frozenset(peer), removed=frozenset(peer))


def readmit(node: Node) -> None:
    node.rounds.context.trust.allow.set_register({}, known=frozenset(), removed=frozenset())


def test_a_round_decided_with_the_votes_of_a_removed_peer_stays_decided() -> None:
    """b missed the rounds, and learns of the removal before it learns of them."""

    async def scene() -> None:
        swarm = await Swarm("abcd", quorum="majority", min_peers=2).start()
        await swarm.until("abcd", 2)
        swarm.part("b", "acd")
        await swarm.until("acd", 4)
        decided = swarm["a"].done
        remove(swarm["b"], "d")
        swarm.network.heal()
        await swarm.until("b", decided)
        assert any("d" in swarm["b"].who(number) for number in range(2, decided)), "its payload counts as well"
        swarm.agree()

    run(scene())


def test_rounds_go_on_while_the_peers_learn_of_a_removal_one_after_the_other() -> None:
    async def scene() -> None:
        swarm = await Swarm("abcde", quorum="majority", min_peers=2).start()
        await swarm.until("abcde", 2)
        for letter in "abc":
            remove(swarm[letter], "e")
            await asyncio.sleep(30)
        remove(swarm["d"], "e")
        before = swarm["a"].done
        await swarm.until("abcd", before + 4)
        assert all("e" not in swarm["a"].who(number) for number in range(before + 1, swarm["a"].done))
        swarm.agree()

    run(scene())


def test_a_peer_that_may_take_part_again_returns_to_the_rounds() -> None:
    async def scene() -> None:
        swarm = await Swarm("abcd", quorum="majority", min_peers=2).start()
        await swarm.until("abcd", 2)
        for letter in "abc":
            remove(swarm[letter], "d")
        await swarm.until("abc", 5)
        for letter in "abc":
            readmit(swarm[letter])
        await swarm.until("abcd", swarm["a"].done + 4)
        assert "d" in swarm["a"].who(swarm["a"].done - 1)
        swarm.agree()

    run(scene())


def test_an_invited_peer_is_counted_up_to_its_last_round() -> None:
    async def scene() -> None:
        swarm = Swarm("abcd", quorum="majority", min_peers=2)
        for node in swarm.nodes.values():
            node.allow = "abc"
            await node.appear()
            node.rounds.context.trust.allow.set_register({"d": 3}, known=frozenset("d"), removed=frozenset())
        for node in swarm.nodes.values():
            await node.start()
        await swarm.until("abc", 8)
        assert ["d" in swarm["a"].who(number) for number in range(8)] == 4 * [True] + 4 * [False]

    run(scene())
