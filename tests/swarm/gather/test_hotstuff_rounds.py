"""Rounds in memory, on a virtual clock, with exchange.trust=nobody: as with Paxos, and beside a liar."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.consensus.hotstuff.messages import COMMIT, PREPARE, NewView, ProposalMessage, Vote
from outerloop.swarm.consensus.hotstuff.votes import UNJUSTIFIED, Proposal
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.p2p.framing import BrokenStream
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.timeouts import LEAD_S
from outerloop.types import UserError
from tests.support.swarm.gather_liar import Liar, swarm_with_liar
from tests.support.swarm.gather_scene import INNER_S, Swarm, memory_of
from tests.support.swarm.virtual_clock import now_s, virtual

QUICK_S = 3.0  # a round of peers that are all well, beyond the inner steps


@pytest.mark.parametrize("letters", ["a", "abcd", "abcdefg"])
@virtual
async def test_all_well_everybody_takes_part_and_nobody_waits(letters: str) -> None:
    swarm = await Swarm(letters, trust="nobody").start()
    await swarm.until(letters, 4)
    assert all(swarm[letter].who(number) == letters for letter in letters for number in range(4))
    assert now_s() < 4 * (INNER_S + QUICK_S)
    assert all(decided.byzantine for decided in memory_of(swarm["a"]).log[1:])
    swarm.agree()


@pytest.mark.parametrize("who", ["leader", "follower"])
@virtual
async def test_a_dead_peer_leaves_the_roster_and_returns(who: str) -> None:
    swarm = await Swarm("abcd", trust="nobody").start()
    await swarm.until("abcd", 2)
    leader = swarm.leader("abcd")
    dead = leader if who == "leader" else next(letter for letter in "abcd" if letter != leader)
    rest = "abcd".replace(dead, "")
    await swarm[dead].kill()
    assert await swarm.until(rest, 3) < INNER_S + 3 * LEAD_S + QUICK_S
    await swarm.until(rest, 6)
    assert swarm[rest[0]].rounds.roster == tuple(swarm[letter].name for letter in rest)
    await swarm[dead].restart()
    await swarm.until("abcd", 10)
    assert len(swarm[rest[0]].rounds.roster) == 4
    swarm.agree()


@virtual
async def test_two_dead_of_four_stop_the_rounds_until_one_returns() -> None:
    swarm = await Swarm("abcd", trust="nobody").start()
    await swarm.until("abcd", 2)
    for letter in "cd":
        await swarm[letter].kill()
    await asyncio.sleep(300)
    assert swarm["a"].done == swarm["b"].done == 2
    await asyncio.sleep(300)
    assert "more than two thirds is 3" in swarm.why("a")
    await swarm["c"].restart()
    await swarm.until("abc", 4)
    swarm.agree()


@virtual
async def test_all_restart_from_their_disks() -> None:
    swarm = await Swarm("abcd", trust="nobody").start()
    await swarm.until("abcd", 2)
    for letter in "abcd":
        await swarm[letter].kill()
    for letter in "abcd":
        await swarm[letter].restart()
    await swarm.until("abcd", 5)
    swarm.agree()


def nothing(liar: Liar, swarm: Swarm):
    return lambda number: None


@virtual
async def test_a_silent_liar_costs_views_and_rounds_continue() -> None:
    swarm, _ = await swarm_with_liar(nothing, trust="nobody", absent_rounds=8)
    await swarm.until("abc", 6)
    swarm.agree()


class Equivocator:
    """Proposes two commits when it leads view 0, votes twice for whatever is proposed, and reports no lock."""

    def __init__(self, liar: Liar, swarm: Swarm) -> None:
        self.liar, self.swarm = liar, swarm

    def proposal(self, commit: Commit) -> ProposalMessage:
        unsigned = Proposal(commit, commit.view, None, b"")
        return ProposalMessage(replace(unsigned, signature=self.liar.keys.sign(unsigned.statement)), ())

    def votes(self, hard_state: HardState, digest: bytes) -> list[Vote]:
        where = hard_state.number, hard_state.head.digest, hard_state.promised
        prepare = self.liar.keys.sign(statements.prepare(*where, digest, UNJUSTIFIED))
        commit = self.liar.keys.sign(statements.commit(*where, digest))
        return [
            Vote(*where, PREPARE, digest, UNJUSTIFIED, prepare),
            Vote(*where, COMMIT, digest, UNJUSTIFIED, commit),
        ]

    async def lie(self) -> None:
        for letter, node in self.swarm.nodes.items():
            chain = node.rounds.context.chain
            hard_state, leader = chain.hard_state, chain.hard_state.leader(chain.view)
            if leader == self.liar.name and chain.view == 0 and len(chain.payloads) >= 2:
                counted = sorted(chain.payloads)[: 2 + (letter == "a")]
                roster = hard_state.roster
                commit = Commit(hard_state.number, hard_state.head.digest, 0, tuple(counted), roster)
                await self.liar.say(node.id, self.proposal(commit))
            if leader == node.name:
                for digest in (bytes(32), bytes([1]) * 32):
                    for vote in self.votes(hard_state, digest):
                        await self.liar.say(node.id, vote)
                where = hard_state.number, hard_state.head.digest, hard_state.promised + 4
                await self.liar.say(node.id, NewView(*where, None))


@virtual
async def test_a_liar_that_votes_and_proposes_twice_is_expelled_and_rounds_continue() -> None:
    swarm, liar = await swarm_with_liar(nothing, trust="nobody", absent_rounds=8)
    equivocator = Equivocator(liar, swarm)
    for _ in range(60):
        await asyncio.sleep(2.0)
        with suppress(BrokenStream, Unreachable):  # once it is expelled, nobody listens
            await equivocator.lie()
    await swarm.until("abc", 8)
    swarm.agree()
    for letter in "abc":
        assert "d" not in swarm[letter].rounds.context.trust.allow


@pytest.mark.parametrize(("first", "then"), [("members", "nobody"), ("nobody", "members")])
@virtual
async def test_a_peer_with_the_votes_of_the_other_protocol_is_refused(first: str, then: str) -> None:
    swarm = await Swarm("abcd", trust=first).start()
    await swarm.until("abcd", 2)
    hard_state = memory_of(swarm["a"])
    other = await Swarm("abcd", trust=then).start()
    with pytest.raises(UserError, match=f"another exchange.trust than {then}: set the value of that run"):
        other["a"].rounds.resume(hard_state)
