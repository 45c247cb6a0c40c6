"""A peer that leaves well: it resigns over the network, and the others continue as if it had never been there."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.messages import ViewChange
from outerloop.swarm.timeouts import RESIGN_S
from tests.support.swarm.gather_scene import INNER_S, Swarm, memory_of
from tests.support.swarm.virtual_clock import now_s, virtual

ALONE = {"quorum": "min_peers", "min_peers": 1}
TRUST = pytest.mark.parametrize("trust", ["members", "nobody"])


async def leave(swarm: Swarm, letter: str) -> None:
    """As on Ctrl-C: the trainer stops, the peer resigns, and the process ends."""
    swarm[letter].training.cancel()
    await swarm[letter].rounds.resign()
    await swarm[letter].kill()


@TRUST
@pytest.mark.parametrize("seed", range(4))
@virtual
async def test_one_of_two_continues_alone_and_the_other_returns(seed: int, trust: str) -> None:
    swarm = await Swarm("ab", seed=seed, trust=trust, **ALONE).start()
    await swarm.until("ab", 2)
    await asyncio.sleep(seed * INNER_S / 4)
    await leave(swarm, "b")
    done = swarm["a"].done
    took_s = await swarm.until("a", done + 4)
    assert took_s < 4 * (INNER_S + 1.0), "no round waits for the leaver, not even one that it would lead"
    assert memory_of(swarm["a"]).roster == ("000-a",)
    await swarm["b"].restart()
    await swarm.until("ab", done + 8)
    swarm.agree()
    assert memory_of(swarm["a"]).roster == ("000-a", "001-b") and swarm["a"].who(done + 7) == "ab"


@virtual
async def test_a_peer_that_is_killed_stops_the_other_one() -> None:
    """Without a resignation."""
    swarm = await Swarm("ab", **ALONE).start()
    await swarm.until("ab", 2)
    await swarm["b"].kill()
    done = swarm["a"].done
    await asyncio.sleep(20 * INNER_S)
    assert swarm["a"].done <= done + 1 and "a majority is 2" in swarm.why("a")


@virtual
async def test_two_of_four_leave_at_once_and_two_continue() -> None:
    swarm = await Swarm("abcd").start()
    await swarm.until("abcd", 2)
    await asyncio.gather(leave(swarm, "c"), leave(swarm, "d"))
    await swarm.until("ab", 6)
    swarm.agree()
    assert memory_of(swarm["a"]).roster == ("000-a", "001-b")


@virtual
async def test_one_that_cannot_reach_the_others_leaves_after_a_while_and_says_so_when_it_returns() -> None:
    swarm = await Swarm("ab", **ALONE).start()
    await swarm.until("ab", 2)
    swarm.part("a", "b")
    began_s = now_s()
    await leave(swarm, "b")
    assert now_s() - began_s <= RESIGN_S + 1.0
    assert memory_of(swarm["b"]).resigned == {"001-b"}
    done = swarm["a"].done
    await asyncio.sleep(5 * INNER_S)
    assert swarm["a"].done <= done + 1
    swarm.network.heal()
    await swarm["b"].restart()
    await swarm.until("ab", done + 5)
    swarm.agree()


@virtual
async def test_who_no_longer_votes_resigns_nothing() -> None:
    swarm = await Swarm("ab", **ALONE).start()
    await swarm.until("ab", 1)
    swarm["b"].rounds.stop_voting()
    await asyncio.sleep(0.1)
    began_s = now_s()
    await swarm["b"].rounds.resign()
    assert now_s() == began_s and not memory_of(swarm["b"]).resignations


@virtual
async def test_a_resignation_is_on_disk_before_any_peer_gets_it() -> None:
    swarm = await Swarm("ab", **ALONE).start()
    await swarm.until("ab", 1)
    saved: list[bool] = []
    loop = swarm["b"].rounds._loop  # noqa: SLF001
    send = loop.ballots.send
    loop.ballots.send = lambda to, message: (  # type: ignore[method-assign]
        saved.append(bool(memory_of(swarm["b"]).resigned)) if type(message).__name__ == "Resigned" else None,
        send(to, message),
    )[1]
    await swarm["b"].rounds.resign()
    assert saved == [True]


@pytest.mark.parametrize(("letters", "trust"), [("abcde", "members"), ("abcdefg", "nobody")])
@virtual
async def test_a_peer_that_serves_commits_without_their_resignations_delays_the_one_that_catches_up_briefly(
    letters: str, trust: str
) -> None:
    """Without the resignation of the last peer, the commit that drops it cannot be applied. The liar also offers its
    log all the time, and answers first."""
    *_, leaver = letters
    swarm = await Swarm(letters, trust=trust, absent_rounds=8, grace_s=3.0).start()
    await swarm.until(letters, 2)
    await swarm["d"].kill()
    while not any(one.peer == swarm[leaver].name for one in swarm["a"].rounds.context.chain.payloads):
        await asyncio.sleep(0.05)  # so that the commit counts the payload of the peer that it drops
    await leave(swarm, leaver)
    present = "".join(set(letters) - {"d", leaver})
    await swarm.until(present, 6)
    chain, rpc = swarm["b"].rounds.context.chain, swarm["b"].rounds.log_rpc
    honest = rpc._since  # noqa: SLF001
    rpc._since = lambda after: tuple(replace(one, resignations=()) for one in honest(after))  # noqa: SLF001
    await swarm["d"].restart()
    async with asyncio.timeout(30):
        while swarm["d"].rounds.context.chain.number < chain.number - 1:
            signed = chain.signer.sign(statements.wish(chain.number, chain.hard_state.head.digest, 1))
            offer = ViewChange(chain.number, chain.hard_state.head.digest, 1, signed)
            swarm["b"].rounds._ballots.send(swarm["d"].name, offer)  # noqa: SLF001
            await asyncio.sleep(0.05)
    swarm.agree()
