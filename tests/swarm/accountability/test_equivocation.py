"""Members that sign what contradicts itself are expelled by all, the run goes on, and honest ones never are."""

from __future__ import annotations

import asyncio
import random

import pytest

from outerloop.swarm.accountability.equivocation import EquivocationWatch
from outerloop.swarm.accountability.expulsion import read_register
from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.commit import Commit, Participant
from outerloop.swarm.consensus.messages import Accept, Message, Promise, Propose
from outerloop.swarm.consensus.state import HardState
from outerloop.types import UserError
from tests.support.swarm.consensus_schedule import Schedule
from tests.support.swarm.gather_liar import Liar, Said, swarm_with_liar
from tests.support.swarm.gather_scene import RUN, Swarm
from tests.support.swarm.signed_statements import two_accepts
from tests.support.swarm.virtual_clock import virtual

HONEST = "abc"


def expelled_by(swarm: Swarm, letter: str) -> dict[str, str]:
    """Whom a peer refuses, and why; the same in its lists as on its disk."""
    node = swarm[letter]
    register = read_register(node.disk)
    assert all(peer not in node.rounds.context.trust.allow for peer in register.expelled)
    assert all(peer in node.rounds.context.trust.allow for peer in "abcd" if peer not in register.expelled)
    return {peer: one.why for peer, one in register.expelled.items()}


def two_payloads(liar: Liar, swarm: Swarm) -> Said:
    """Another one for each that asks, well sealed."""

    def says(number: int) -> object:
        return liar.offer(liar.seal(f"{liar.asked[number]}".encode() * 500, number))

    return says


@virtual
async def test_a_peer_that_signs_two_payloads_of_a_round_is_expelled_by_all() -> None:
    swarm, liar = await swarm_with_liar(two_payloads)
    await swarm.until(HONEST, 8)
    await asyncio.sleep(60)
    for letter in HONEST:
        found = expelled_by(swarm, letter)
        assert set(found) == {"d"} and found["d"].startswith("signed two payloads for commit ")
    swarm.agree()
    last = max(swarm["a"].landed)
    assert swarm["a"].who(last) == HONEST and liar.name not in swarm["a"].rounds.roster


@virtual
async def test_with_quorum_all_the_run_goes_on_without_who_was_expelled() -> None:
    swarm, _ = await swarm_with_liar(lambda liar, swarm: lambda number: None, quorum="all")
    await asyncio.sleep(100)
    assert [swarm[letter].done for letter in HONEST] == [0, 0, 0], "all are waited for"
    await swarm["a"].rounds.witness.accusations.accuse(two_accepts("003-d", session=RUN))
    await swarm.until(HONEST, 4, limit_s=100)
    assert swarm["a"].who(3) == HONEST


async def until_it_leads(swarm: Swarm) -> HardState:
    """Until "d" leads the round at hand of all, and all hold the payloads of each other."""
    for _ in range(10_000):
        machines = [swarm[letter].rounds.context.chain for letter in HONEST]
        hard_state = machines[0].hard_state
        held = [machine.payloads for machine in machines]
        alike = len({(machine.number, machine.view) for machine in machines}) == 1
        if alike and hard_state.leader(0) == "003-d" and machines[0].view == 0 and all(len(one) >= 3 for one in held):
            return hard_state
        await asyncio.sleep(0.05)
    raise AssertionError("it never leads")


@virtual
async def test_a_leader_that_proposes_two_commits_in_a_view_is_expelled_by_all() -> None:
    swarm, liar = await swarm_with_liar(lambda liar, swarm: lambda number: None)
    hard_state = await until_it_leads(swarm)
    payloads = sorted(swarm["a"].rounds.context.chain.payloads)
    for to, some in (("a", payloads[:2]), ("b", payloads[1:]), ("c", payloads[1:])):
        await liar.say(to, liar.propose(_commit(hard_state, some)))
    await asyncio.sleep(200)
    assert [set(expelled_by(swarm, letter)) for letter in HONEST] == [{"d"}] * 3
    assert "accepted two proposals" in expelled_by(swarm, "a")["d"]
    swarm.agree()
    assert min(swarm[letter].done for letter in HONEST) > hard_state.number


def _commit(hard_state: HardState, some: list[Participant]) -> Commit:
    return Commit(hard_state.number, hard_state.head.digest, 0, tuple(some), hard_state.roster)


@virtual
async def test_two_proposals_to_one_peer_are_evidence_at_once() -> None:
    swarm, liar = await swarm_with_liar(lambda liar, swarm: lambda number: None)
    hard_state = await until_it_leads(swarm)
    payloads = sorted(swarm["a"].rounds.context.chain.payloads)
    for some in (payloads[:2], payloads[1:]):
        await liar.say("a", liar.propose(_commit(hard_state, some)))
    await asyncio.sleep(5)
    assert [set(expelled_by(swarm, letter)) for letter in HONEST] == [{"d"}] * 3


@virtual
async def test_two_accepts_to_one_peer_are_evidence_though_it_has_proposed_neither() -> None:
    swarm, liar = await swarm_with_liar(lambda liar, swarm: lambda number: None)
    hard_state = await until_it_leads(swarm)
    for digest in (b"x" * 32, b"y" * 32):
        await liar.say("a", liar.accept(hard_state, digest))
    await asyncio.sleep(5)
    assert [set(expelled_by(swarm, letter)) for letter in HONEST] == [{"d"}] * 3


@virtual
async def test_the_expelled_stay_out_after_a_restart_and_who_was_away_hears_of_it() -> None:
    swarm, _ = await swarm_with_liar(lambda liar, swarm: lambda number: None)
    await swarm.until(HONEST, 5)
    await swarm["c"].kill()
    await swarm["a"].rounds.witness.accusations.accuse(two_accepts("003-d", session=RUN))
    await asyncio.sleep(5)
    await swarm["a"].kill()
    await swarm["a"].restart()
    assert [set(expelled_by(swarm, letter)) for letter in "ab"] == [{"d"}] * 2
    await swarm["c"].restart()
    await asyncio.sleep(200)
    assert set(expelled_by(swarm, "c")) == {"d"}


@pytest.mark.parametrize("seed", range(2))
@virtual
async def test_honest_peers_that_crash_and_part_are_never_expelled(seed: int) -> None:
    swarm, rng = Swarm("abcd", seed=seed, break_chance=0.0005), random.Random(seed)
    await swarm.start()
    for _ in range(8):
        letter = rng.choice("abcd")
        swarm.part(letter, "".join(other for other in "abcd" if other != letter))
        await asyncio.sleep(rng.uniform(1, 40))
        swarm.network.heal()
        await swarm[letter].kill()
        await asyncio.sleep(rng.uniform(1, 40))
        await swarm[letter].restart(lost=rng.choice([0, 1]))
    await asyncio.sleep(100)
    assert all(expelled_by(swarm, letter) == {} for letter in "abcd")
    swarm.agree()


@virtual
async def test_a_payload_that_is_damaged_on_disk_is_not_sealed_anew() -> None:
    """The others hold what was sealed first, so that another one would be evidence against an honest peer."""
    swarm = await Swarm("abc", inner_s={"c": 40.0}, quorum="all").start()
    while swarm.leader("abc") != "a":  # which proposes what it holds of its own
        await asyncio.sleep(0.05)
    await asyncio.sleep(25)
    await swarm["a"].kill()
    number = swarm["a"].done
    [name] = [name for name in swarm["a"].disk if name.startswith(f"{number:012d}-") and "-000-a" in name]
    swarm["a"].disk[name] = bytes(80)
    await swarm["a"].restart()
    await swarm.until("abc", number + 2)
    assert all(expelled_by(swarm, letter) == {} for letter in "abc")
    assert swarm["a"].who(number) == "abc"
    swarm.agree()


def said_in(sender: str, message: Message) -> list[statements.Statement]:
    """What a message of its sender's own says and signs, apart from wishes and asks."""
    if isinstance(message, Accept):
        return [statements.accept(message.number, message.head, message.view, message.digest)]
    if isinstance(message, Promise):
        return [statements.promise(message.number, message.head, message.view, message.vote)]
    if isinstance(message, Propose):
        return [statements.accept(message.number, message.head, message.view, message.accepted.commit.digest)]
    return []


@pytest.mark.parametrize("seed", range(40))
def test_no_schedule_makes_honest_peers_contradict_themselves(seed: int) -> None:
    """Crashes within an event, restarts from disk, lost and repeated messages: the model of the agreement itself."""
    schedule = Schedule(seed)
    monitor, watch, count = schedule.world.monitor, EquivocationWatch(RUN), 0
    said = monitor.said

    def heard(peer: str, message: Message, disk: HardState) -> None:
        nonlocal count
        said(peer, message, disk)
        for statement in said_in(peer, message):
            count += 1
            watch.begin(int(statement[1]))
            assert watch.saw(peer, statement, bytes(64)) is None, f"{peer} says {statement}"

    monitor.said = heard  # type: ignore[method-assign]
    schedule.run()
    assert count > 0


@virtual
async def test_a_peer_whose_key_has_lied_ends_and_says_what_to_do() -> None:
    swarm = await Swarm("abc").start()
    await swarm.until("abc", 1)
    swarm["a"].rounds.witness.own_key_accused("accepted two proposals for commit 3, view 0")
    await asyncio.sleep(60)
    assert isinstance(swarm["a"].error, UserError) and "join as a new peer" in str(swarm["a"].error)
