"""Rounds in memory, on a virtual clock: who dies, freezes, lags or is cut off costs the others little."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from outerloop.swarm.consensus.commit import genesis
from outerloop.swarm.consensus.state import ROUNDS_KEPT, HardState
from outerloop.swarm.consensus.votes import CommitCertificate
from outerloop.swarm.gather.committed_rounds import CommittedRounds, LogTruncated
from outerloop.swarm.gather.payload_downloads import PayloadDownloads
from outerloop.swarm.gather.round_store import RoundStore
from outerloop.swarm.membership.mailbox import Mailbox
from outerloop.swarm.timeouts import GONE_AFTER_S, LEAD_S
from outerloop.swarm.transfer.sources import ContentUnavailable
from tests.support.swarm.gather_scene import INNER_S, MemoryDisk, Swarm, memory_of
from tests.support.swarm.virtual_clock import now_s, run, virtual

QUICK_S = 2.0  # a round of peers that are all well, beyond the inner steps


@pytest.mark.parametrize("letters", ["a", "ab", "abcde"])
@virtual
async def test_all_well_everybody_takes_part_and_nobody_waits(letters: str) -> None:
    swarm = await Swarm(letters).start()
    await swarm.until(letters, 5)
    assert all(swarm[letter].who(number) == letters for letter in letters for number in range(5))
    assert now_s() < 5 * (INNER_S + QUICK_S)
    swarm.agree()


@pytest.mark.parametrize("who", ["leader", "follower"])
@virtual
async def test_a_dead_peer_costs_a_view_at_most_and_then_nothing(who: str) -> None:
    """No grace: nothing is there to be dialed."""
    swarm = await Swarm("abcd").start()
    await swarm.until("abcd", 2)
    leader = swarm.leader("abcd")
    dead = leader if who == "leader" else next(letter for letter in "abcd" if letter != leader)
    rest = "abcd".replace(dead, "")
    await swarm[dead].kill()
    took_s = await swarm.until(rest, 3)
    assert took_s < INNER_S + (LEAD_S if who == "leader" else 0) + QUICK_S
    assert swarm[rest[0]].who(2) == rest
    assert await swarm.until(rest, 5) < 3 * (INNER_S + QUICK_S)
    assert swarm[rest[0]].rounds.roster == tuple(swarm[letter].name for letter in rest)
    assert await swarm.until(rest, 7) < 2 * (INNER_S + QUICK_S)
    swarm.agree()


@virtual
async def test_a_peer_that_dies_during_its_grace_costs_no_more_of_it() -> None:
    swarm = await Swarm("abcd", inner_s={"d": INNER_S + 2}, grace_s=60.0).start()
    await swarm.until("abcd", 1)
    await asyncio.sleep(INNER_S + 1)
    assert swarm.leader("abcd") != "d", "its view would come on top of it"
    await swarm["d"].kill()
    assert await swarm.until("abc", 2) < GONE_AFTER_S + QUICK_S
    assert swarm["a"].who(1) == "abc"
    swarm.agree()


@virtual
async def test_a_peer_that_was_unreachable_for_a_moment_has_its_grace_again() -> None:
    """A second of a broken link before anybody has a payload, and then two seconds later than the others."""
    swarm = await Swarm("abcd", inner_s={"d": INNER_S + 2}).start()
    await swarm.until("abcd", 1)
    await asyncio.sleep(INNER_S / 2)
    swarm.network.kill("d")
    await asyncio.sleep(1)
    swarm.network.cut.discard("d")
    await swarm.until("abcd", 2)
    assert swarm["a"].who(1) == "abcd"


@virtual
async def test_a_frozen_peer_is_left_out_and_catches_up() -> None:
    swarm = await Swarm("abcd").start()
    await swarm.until("abcd", 1)
    swarm.network.freeze("b")
    took_s = await swarm.until("acd", 2)
    assert took_s < INNER_S + 3 + LEAD_S + QUICK_S
    await swarm.until("acd", 5)
    assert swarm["b"].done <= 2 and len(swarm["a"].rounds.roster) == 3
    swarm.network.thaw("b")
    await swarm.until("abcd", 9)
    assert swarm["a"].who(8) == "abcd"
    swarm.agree()


@virtual
async def test_a_slightly_slower_peer_is_waited_for_and_a_much_slower_one_is_not() -> None:
    swarm = await Swarm("abcd", inner_s={"c": INNER_S + 2, "d": 2.5 * INNER_S}).start()
    await swarm.until("abcd", 8)
    assert all("c" in swarm["a"].who(number) for number in range(8))
    with_d = [number for number in range(8) if "d" in swarm["a"].who(number)]
    assert 0 < len(with_d) < 5, "it takes part in those that are open when it is ready"
    assert swarm["a"].landed_s[7] < 8 * (INNER_S + 3 + QUICK_S)
    swarm.agree()


@virtual
async def test_a_majority_goes_on_and_the_others_wait_and_say_why_until_the_network_heals() -> None:
    swarm = await Swarm("abcde").start()
    await swarm.until("abcde", 2)
    swarm.part("abc", "de")
    await swarm.until("abc", 6, limit_s=200)
    assert max(swarm[letter].done for letter in "de") <= 3
    reason = "2 of 5 peers are reachable, but a majority is 3; no answer from 000-a"
    assert all(reason in swarm.why(letter) for letter in "de")
    assert not any("reachable" in swarm.why(letter) for letter in "abc")
    swarm.network.heal()
    await swarm.until("abcde", 11)
    assert swarm["a"].who(10) == "abcde"
    swarm.agree()


@virtual
async def test_two_halves_wait_and_none_goes_on_alone() -> None:
    swarm = await Swarm("abcd").start()
    await swarm.until("abcd", 2)
    swarm.part("ab", "cd")
    await asyncio.sleep(300)
    assert max(node.done for node in swarm.nodes.values()) <= 3
    assert all("2 of 4 peers are reachable, but a majority is 3" in swarm.why(letter) for letter in "abcd")
    healed_s = now_s()
    swarm.network.heal()
    await swarm.until("abcd", 6)
    assert now_s() - healed_s < 4 * (INNER_S + QUICK_S) + 70
    swarm.agree()


@pytest.mark.parametrize("lost", [0, 3])
@virtual
async def test_a_restarted_peer_is_back_from_its_own_disk(lost: int) -> None:
    swarm = await Swarm("abcd").start()
    await swarm.until("abcd", 4)
    await swarm["c"].kill()
    await swarm.until("abd", 7)
    await swarm["c"].restart(lost=lost)
    await swarm.until("abcd", 10)
    assert swarm["a"].who(9) == "abcd"
    swarm.agree()


@virtual
async def test_all_restart_and_go_on_where_they_were() -> None:
    swarm = await Swarm("abc").start()
    await swarm.until("abc", 3)
    await asyncio.sleep(INNER_S + 0.02)  # in the middle of a round
    for node in swarm.nodes.values():
        await node.kill()
    await asyncio.sleep(50)
    for node in swarm.nodes.values():
        await node.restart()
    await swarm.until("abc", 6, limit_s=200)
    swarm.agree()


@virtual
async def test_a_peer_that_missed_more_than_the_log_holds_is_told_so() -> None:
    swarm = await Swarm("abcd").start()
    await swarm.until("abcd", 1)
    await swarm["d"].kill()
    await swarm.until("abc", ROUNDS_KEPT + 4)
    await swarm["d"].restart()
    while swarm["d"].error is None:
        await asyncio.sleep(1)
    assert isinstance(swarm["d"].error, LogTruncated)


@virtual
async def test_a_peer_with_a_commit_whose_payloads_are_gone_is_told_so() -> None:
    swarm = await Swarm("abcd").start()
    await swarm.until("abcd", 1)
    bulk = swarm["d"].rounds.bulk

    async def get_nothing(*args: object, **options: object) -> bytes:
        await asyncio.sleep(1)
        raise ContentUnavailable("lost")

    bulk.get = get_nothing  # type: ignore[method-assign, assignment]
    await asyncio.sleep(2 * ROUNDS_KEPT * (INNER_S + 3))
    assert swarm["a"].done > ROUNDS_KEPT + 4
    assert isinstance(swarm["d"].error, LogTruncated), swarm.describe()


@virtual
async def test_later_commits_stay_known_when_the_trainer_skips_to_an_earlier_one() -> None:
    downloads = SimpleNamespace(drop_all_but=lambda number, participants: None)
    outcomes = CommittedRounds(RoundStore(MemoryDisk()), cast(PayloadDownloads, downloads), own="a")
    first = genesis("r", "a")
    outcomes.begin(HardState("r", "a", (CommitCertificate(first, 0, ()),)))
    for number in range(1, 5):
        outcomes.add(replace(first, number=number))
    outcomes.skip_to(2)
    assert [outcomes.decided(number) for number in (3, 4, 5)] == [True, True, False]
    outcomes.skip_to(9)
    assert not outcomes.decided(10)
    with pytest.raises(LogTruncated):
        outcomes.decided(4)


@virtual
async def test_only_the_last_rounds_stay_on_disk() -> None:
    swarm = await Swarm("ab").start()
    await swarm.until("ab", 2 * ROUNDS_KEPT)
    assert len(swarm["a"].disk) <= 1 + 2 * (ROUNDS_KEPT + 1)
    assert memory_of(swarm["a"]).number >= 2 * ROUNDS_KEPT


def test_with_quorum_all_a_dead_peer_stops_the_run_and_with_min_peers_the_fastest_go_on() -> None:
    async def everybody() -> None:
        swarm = await Swarm("abc", quorum="all").start()
        await swarm.until("abc", 1)
        await swarm["b"].kill()
        await asyncio.sleep(500)
        assert swarm["a"].done == 1 and "of 3 payloads have arrived, none from 001-b" in swarm.why("a") + swarm.why("c")

    async def fastest() -> None:
        slow = {letter: 2.2 * INNER_S for letter in "cde"}
        swarm = await Swarm("abcde", quorum="min_peers", inner_s=slow, absent_rounds=8).start()
        await swarm.until("ab", 3)
        assert swarm["a"].who(0) == "ab" and now_s() < 3 * (INNER_S + 3 + QUICK_S)
        swarm.agree()

    run(everybody())
    run(fastest())


@pytest.mark.parametrize("seed", range(6))
@virtual
async def test_whatever_breaks_nobody_lands_another_round(seed: int) -> None:
    """Streams break at random, peers die, come back, freeze and are cut off; at the end all is well and all agree."""
    swarm = await Swarm("abcde", seed=seed, break_chance=0.02, inner_s={"e": 1.7 * INNER_S}).start()
    first, second = "abcde"[seed % 5], "abcde"[(seed + 2) % 5]
    await swarm.until("abcd", 1)
    await swarm[first].kill()
    await asyncio.sleep(17)
    swarm.network.freeze(second)
    await asyncio.sleep(20)
    await swarm[first].restart()
    await asyncio.sleep(13)
    swarm.network.thaw(second)
    swarm.part("ab", "de")
    await asyncio.sleep(40)
    swarm.network.heal()
    goal = max(node.done for node in swarm.nodes.values()) + 4
    await swarm.until("abcde", goal, limit_s=400)
    swarm.agree()


@virtual
async def test_the_board_waits_for_the_future_and_forgets_the_past() -> None:
    board: Mailbox[str] = Mailbox(keep=2)
    waiting = asyncio.create_task(board.read(2))
    await asyncio.sleep(0)
    for number in range(1, 4):
        board.post(number, f"round {number}")
    assert await waiting == "round 2"
    assert await board.read(1) is None and board.get(3) == "round 3"
    later = asyncio.create_task(board.read(4))
    await asyncio.sleep(0)
    board.over(4)
    assert await later is None
