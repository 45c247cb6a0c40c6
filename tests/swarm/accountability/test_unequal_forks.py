"""A fork whose sides are of different lengths: the shorter one hears of the other by its commits alone."""

from __future__ import annotations

import asyncio
from typing import Any

from outerloop.swarm.consensus.commit import Commit, turns
from outerloop.swarm.consensus.messages import Accept, Propose
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.consensus.statements import accept
from outerloop.swarm.gather.ballot_rpc import receive_message
from outerloop.swarm.p2p.framing import Stream
from tests.support.swarm.fork_scene import Equivocator, decided_by, two_commits, until_it_leads
from tests.support.swarm.gather_scene import RUN, Swarm
from tests.support.swarm.virtual_clock import virtual


class Accomplice(Equivocator):
    """It accepts what is proposed for a round that it helps with."""

    helps_with = -1

    async def listen_on(self) -> None:
        async def listen(remote: str, request: Any, stream: Stream) -> None:
            message = await receive_message(stream)
            await stream.ended()
            if isinstance(message, Accept):
                self.accepts[remote] = message
            elif isinstance(message, Propose) and message.number == self.helps_with:
                await self.say(remote, self.accept(message.accepted.commit))

        await self.link.serve(f"outerloop/1/{RUN}/ballot", allowed=lambda peer: True, handler=listen)

    def accept(self, of: Commit) -> Accept:
        signature = self.keys.sign(accept(of.number, of.parent, 0, of.digest))
        return Accept(of.number, of.parent, 0, of.digest, signature)


def long_side(hard_state: HardState) -> str:
    """Who can decide the round after this one with the liar's accept, since one of them leads it."""
    after = turns(hard_state.session, hard_state.number + 1, hard_state.roster, hard_state.head.demoted)[0].partition(
        "-"
    )[2]
    return next((side for side in ("ab", "cd") if after in side), "")


async def forked() -> tuple[Swarm, HardState, str]:
    """Five peers, of which the liar led round r: one pair landed X, the other one Y, and X has one round more."""
    swarm = Swarm("abcde", absent_rounds=8)
    liar = Accomplice(swarm.network, swarm["e"].name)
    await liar.serve(lambda number: None)
    await liar.listen_on()
    del swarm.nodes["e"]
    await swarm.start()
    while not (side := long_side(hard_state := await until_it_leads(swarm, liar))):
        await asyncio.sleep(0.05)
    swarm.part("ab", "cd")
    liar.helps_with = hard_state.number + 1
    better_first = sorted(two_commits(swarm, hard_state), key=lambda one: one.digest)
    for letters, of in zip((side, "abcd".replace(side, "")), better_first, strict=True):
        await decided_by(liar, letters, of)
    while min(swarm[letter].rounds.context.chain.number for letter in side) < hard_state.number + 2:
        await asyncio.sleep(0.1)
    liar.helps_with = -1
    return swarm, hard_state, side


@virtual
async def test_the_shorter_side_of_a_fork_goes_over_to_the_longer_one() -> None:
    swarm, hard_state, side = await forked()
    machines = {letter: swarm[letter].rounds.context.chain for letter in "abcd"}
    assert {letter for letter in "abcd" if machines[letter].number == hard_state.number + 1} == set("abcd") - set(side)
    swarm.network.heal()
    await asyncio.sleep(120)
    logs = [{one.commit.number: one.commit.digest for one in machine.hard_state.log} for machine in machines.values()]
    assert all(log[hard_state.number] == logs[0][hard_state.number] for log in logs), "one chain"
    assert all("e" not in swarm[letter].rounds.context.trust.allow for letter in "abcd")
    assert all(letter in swarm["a"].rounds.context.trust.allow for letter in "bcd")
