"""A fork whose sides are of different lengths: the shorter one hears of the other by its commits alone."""

from __future__ import annotations

import asyncio
from typing import Any

from gather_scene import RUN, Swarm
from test_swarm_forks import Equivocator, all_hold
from virtual_clock import run

from outerloop.swarm.ballots import Accept, Propose
from outerloop.swarm.commits import Commit
from outerloop.swarm.framing import Stream
from outerloop.swarm.memory import Memory, leader
from outerloop.swarm.post import receive_message
from outerloop.swarm.statements import accept


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


def long_side(memory: Memory) -> str:
    """Who can decide the round after this one with the liar's accept, since one of them leads it."""
    after = leader(memory.run, memory.number + 1, 0, memory.roster).partition("-")[2]
    return next((side for side in ("ab", "cd") if after in side), "")


async def forked() -> tuple[Swarm, Memory, str]:
    """Five peers, of which the liar led round r: one pair landed X, the other one Y, and X has one round more."""
    swarm = Swarm("abcde", absent_rounds=8)
    liar = Accomplice(swarm.network, swarm["e"].name)
    await liar.serve(lambda number: None)
    await liar.listen_on()
    del swarm.nodes["e"]
    await swarm.start()
    while True:
        machines = [swarm[letter].rounds._agreement for letter in "abcd"]
        memory, side = machines[0].memory, long_side(machines[0].memory)
        alike = len({(one.number, one.view) for one in machines}) == 1 and machines[0].view == 0
        if alike and side and memory.leader(0) == liar.name and all_hold(machines):
            break
        await asyncio.sleep(0.05)
    payloads = sorted(machines[0].payloads)
    both = [
        Commit(memory.number, memory.head.digest, 0, tuple(some), memory.roster)
        for some in (payloads[:3], payloads[1:])
    ]
    both.sort(key=lambda one: one.digest)
    swarm.part("ab", "cd")
    liar.helps_with = memory.number + 1
    for letters, of in zip((side, "abcd".replace(side, "")), both, strict=True):
        for letter in letters:
            await liar.say(letter, liar.propose(of))
        while not all(letter in liar.accepts for letter in letters):
            await asyncio.sleep(0.01)
        for letter in letters:
            await liar.say(letter, liar.decide(of, letters))
    while min(swarm[letter].rounds._agreement.number for letter in side) < memory.number + 2:
        await asyncio.sleep(0.1)
    liar.helps_with = -1
    return swarm, memory, side


def test_the_shorter_side_of_a_fork_goes_over_to_the_longer_one() -> None:
    async def scene() -> None:
        swarm, memory, side = await forked()
        machines = {letter: swarm[letter].rounds._agreement for letter in "abcd"}
        assert {letter for letter in "abcd" if machines[letter].number == memory.number + 1} == set("abcd") - set(side)
        swarm.network.heal()
        await asyncio.sleep(120)
        logs = [{one.commit.number: one.commit.digest for one in machine.memory.log} for machine in machines.values()]
        assert all(log[memory.number] == logs[0][memory.number] for log in logs), "one chain"
        assert all("e" not in swarm[letter].rounds._trust.allow for letter in "abcd")
        assert all(letter in swarm["a"].rounds._trust.allow for letter in "bcd")

    run(scene())
