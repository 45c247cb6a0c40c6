"""A peer returns to a run that continued with other peers than those of its last roster."""

from __future__ import annotations

import asyncio

from outerloop.swarm.consensus.state import ROUNDS_KEPT
from outerloop.swarm.gather.committed_rounds import LogTruncated
from outerloop.swarm.timeouts import RETURN_POLL_S, RETURN_S
from tests.support.swarm.gather_scene import Node, Swarm, memory_of
from tests.support.swarm.state_transfer_scene import donate, landing, state_transfer_of, taking
from tests.support.swarm.virtual_clock import now_s, virtual

EVERYONE = "abcdefg"


def roster_of(node: Node) -> str:
    return "".join(name.partition("-")[2] for name in node.rounds.roster)


async def leave(swarm: Swarm) -> None:
    """Kill d, f and g in turn, so that a, b and c continue alone, without e, until no log reaches back to e's."""
    await swarm["d"].kill()
    while roster_of(swarm["a"]) != "abcfg":
        await asyncio.sleep(1)
    for letter in "fg":
        await swarm[letter].kill()
    while roster_of(swarm["a"]) != "abc":
        await asyncio.sleep(1)
    await swarm.until("abc", swarm["a"].done + ROUNDS_KEPT)


async def away() -> Swarm:
    """e is killed; then half of the six other peers of its last roster leave, and never return."""
    swarm = await Swarm(EVERYONE).start()
    await donate(swarm)
    await swarm.until(EVERYONE, 2)
    await swarm["e"].kill()
    await leave(swarm)
    assert len(memory_of(swarm["e"]).roster) == len(EVERYONE)
    return swarm


async def failed(node: Node, *, within_s: float) -> bool:
    """Wait until the node's training ends because it needs the state."""
    until_s = now_s() + within_s
    while node.error is None and now_s() < until_s:
        await asyncio.sleep(1)
    assert node.error is None or isinstance(node.error, LogTruncated)
    return node.error is not None


async def resume_from_others(swarm: Swarm, node: Node) -> None:
    """Download the state and train on from it."""
    transfer = state_transfer_of(node, allow=node.allow)
    number, content = await taking(transfer, node.names.values())
    assert content == b"state %d" % number
    node.error, node.landed = None, {}
    node.land = landing(node, transfer)  # type: ignore[method-assign]
    node.training = asyncio.create_task(node.train(number + 1))


@virtual
async def test_in_an_open_run_it_downloads_the_state_from_the_peers_that_answer_and_votes_again() -> None:
    swarm = await away()
    returning, began_s = swarm["e"], now_s()
    await returning.restart()
    assert await failed(returning, within_s=600)
    assert RETURN_S <= now_s() - began_s <= RETURN_S + 5 * RETURN_POLL_S, "no sooner: its roster may still return"
    before_s = now_s()
    await resume_from_others(swarm, returning)
    assert now_s() - before_s < RETURN_S, "the time that it waited already counts"
    while "e" not in {peer.partition("-")[2] for peer in swarm["a"].rounds.roster}:
        await asyncio.sleep(1)
    await swarm.until("abce", len(returning.landed) + 3)
    assert returning.rounds.context.chain.votes
    swarm.agree()


@virtual
async def test_a_peer_whose_checkpoint_is_older_than_its_log_waits_as_long_and_returns_as_well() -> None:
    swarm = await away()
    returning, began_s = swarm["e"], now_s()
    swarm.network.cut.discard("e")
    await returning.appear()
    returning.rounds.resume(memory_of(returning))
    returning.rounds.outcomes.fail(LogTruncated())
    await resume_from_others(swarm, returning)
    assert now_s() - began_s >= RETURN_S
    await swarm.until("abce", 3)
    swarm.agree()


@virtual
async def test_with_an_allow_list_it_waits_for_more_than_half_of_its_roster_or_of_the_list() -> None:
    swarm = await away()
    returning = swarm["e"]
    returning.allow = EVERYONE
    await returning.restart()
    assert not await failed(returning, within_s=10 * RETURN_S)
    why = returning.rounds.waits_for(2)
    assert "exchange.allow must report one commit" in why and "reform" not in why
    await swarm["f"].restart()
    assert await failed(returning, within_s=10 * RETURN_S), "a, b, c and f are four of six"


@virtual
async def test_it_does_not_advise_to_give_up_the_absent_peers_while_others_report_later_commits() -> None:
    swarm = await away()
    returning, newest = swarm["e"], swarm["a"].rounds.context.chain.hard_state.head.number
    await returning.restart()
    await asyncio.sleep(RETURN_S / 2)
    why = returning.rounds.waits_for(2)
    reported = int(why.partition("other peers report commit ")[2].partition(":")[0])
    assert newest <= reported <= newest + RETURN_S and "once most peers that answer agree on it for 60 s" in why
    for letter in "abc":
        swarm.part(letter, "e")
    await asyncio.sleep(2 * RETURN_S)
    why = returning.rounds.lacks_quorum()
    assert "no answer from" in why and "the run has continued without this peer" in why and "reform" not in why


@virtual
async def test_without_later_commits_the_absent_peers_can_be_given_up() -> None:
    swarm = await Swarm("abcde").start()
    await swarm.until("abcde", 2)
    for letter in "abc":
        await swarm[letter].kill()
    await asyncio.sleep(120)
    assert "exchange.reform=true exchange.peers=2" in swarm["d"].rounds.lacks_quorum()


@virtual
async def test_a_process_that_was_in_touch_with_its_roster_falls_back_only_after_a_restart() -> None:
    swarm = await Swarm(EVERYONE).start()
    await swarm.until(EVERYONE, 2)
    while not swarm["e"].rounds.comeback.settled:
        await asyncio.sleep(1)
    swarm.part("e", "abcdfg")
    await leave(swarm)
    swarm.network.heal()
    assert not await failed(swarm["e"], within_s=5 * RETURN_S)
    assert "or restart this peer" in swarm["e"].rounds.waits_for(swarm["e"].done)
    await swarm["e"].kill()
    await swarm["e"].restart()
    assert await failed(swarm["e"], within_s=5 * RETURN_S)
