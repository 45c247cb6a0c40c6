"""A swarm in memory with a liar that leads a round and lets two sides decide different commits of it."""

from __future__ import annotations

import asyncio
from typing import Any

from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.consensus.messages import Accept
from outerloop.swarm.consensus.paxos.chain import PaxosChain
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.consensus.votes import CommitCertificate
from outerloop.swarm.gather.ballot_rpc import receive_message
from outerloop.swarm.p2p.framing import Stream
from tests.support.swarm.gather_liar import Liar, Said
from tests.support.swarm.gather_scene import RUN, Swarm
from tests.support.swarm.memory_network import MemoryNetwork


class Equivocator(Liar):
    """It keeps the accepts that others send it."""

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        super().__init__(network, name)
        self.accepts: dict[str, Accept] = {}

    async def serve(self, says: Said) -> None:
        async def listen(remote: str, request: Any, stream: Stream) -> None:
            message = await receive_message(stream)
            if isinstance(message, Accept):
                self.accepts[remote] = message
            await stream.ended()

        await super().serve(says)
        await self.link.serve(f"outerloop/1/{RUN}/ballot", allowed=lambda peer: True, handler=listen)

    def decide(self, commit: Commit, letters: str) -> CommitCertificate:
        """With its own accept, as the leader of view 0, and those that these have sent."""
        accepts = {f"{'abcd'.index(letter):03d}-{letter}": self.accepts[letter].signature for letter in letters}
        own = self.propose(commit).accepted.links[0].signature
        return CommitCertificate(commit, 0, tuple(sorted({**accepts, self.name: own}.items())))


def all_hold(machines: list[PaxosChain]) -> bool:
    return all(len(machine.payloads) >= 4 for machine in machines)


async def until_it_leads(swarm: Swarm, liar: Liar) -> HardState:
    """Return the memory of "a" once the liar leads the round at hand of all others, and all hold their payloads."""
    while True:
        machines = [swarm[letter].rounds.context.chain for letter in "abcd"]
        hard_state, alike = machines[0].hard_state, len({(one.number, one.view) for one in machines}) == 1
        if alike and machines[0].view == 0 and hard_state.leader(0) == liar.name and all_hold(machines):
            return hard_state
        await asyncio.sleep(0.05)


def two_commits(swarm: Swarm, hard_state: HardState) -> list[Commit]:
    """Return two commits of the round at hand that count different payloads."""
    payloads = sorted(swarm["a"].rounds.context.chain.payloads)
    return [
        Commit(hard_state.number, hard_state.head.digest, 0, tuple(some), hard_state.roster)
        for some in (payloads[:3], payloads[1:])
    ]


async def decided_by(liar: Equivocator, letters: str, of: Commit) -> None:
    """Propose a commit to some peers alone, and tell them that it is decided once they have accepted it."""
    for letter in letters:
        await liar.say(letter, liar.propose(of))
    while not all(letter in liar.accepts for letter in letters):
        await asyncio.sleep(0.01)
    for letter in letters:
        await liar.say(letter, liar.decide(of, letters))
