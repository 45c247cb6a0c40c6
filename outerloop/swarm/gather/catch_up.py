"""Catch up with peers that are ahead: fetch the missing commits, and ask to be back in the roster.

somebody is ahead          ->   the commits after the last one here, from it or from any other (log_rpc.py)
most are, no log reaches   ->   this peer is outrun (proof.py): it has to take over the state
not counted on             ->   it says that it is there, again and again, until it is
on another chain           ->   their log, to be compared with the one here (forks.py)

That a log does not reach back, or commits that do not follow, change nothing unless they are proven: refused by name.
Anybody can say that it is ahead. A fetch that brings nothing is the last one for RETRY_S that this peer causes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from outerloop.swarm.access.access_control import AccessControl
from outerloop.swarm.consensus.chain import CommitChain
from outerloop.swarm.consensus.messages import CommitCertificate
from outerloop.swarm.gather.log_rpc import LogAnswer, LogRpc
from outerloop.swarm.gather.proof import ahead, most, voters_of
from outerloop.swarm.p2p.framing import BrokenStream
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.timeouts import ASK_S, HEDGE_S, RETRY_S
from outerloop.swarm.validation import id_of

logger = logging.getLogger(__name__)


class CatchUpTask:
    """`machine`: the agreement here; `others`: who decides the round at hand, this peer apart.

    `receive` takes a commit and whom it is from, `outrun` the number of a round whose commit nobody tells any more,
    `parted` a peer and the log of its chain.
    `away`: the trainer does not have the state yet that the chain here begins with.
    """

    def __init__(
        self,
        history: LogRpc,
        trust: AccessControl,
        *,
        machine: Callable[[], CommitChain],
        others: Callable[[], Sequence[str]],
        receive: Callable[[str, CommitCertificate], None],
        outrun: Callable[[int], None],
        parted: Callable[[str, Sequence[CommitCertificate]], None],
    ) -> None:
        self._history = history
        self._trust = trust
        self._machine = machine
        self._others = others
        self._receive = receive
        self._outrun = outrun
        self._parted = parted
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._comparing: dict[str, asyncio.Task[None]] = {}
        self._free_s = 0.0
        self.away = False

    def catch_up(self, peer: str) -> None:
        """This one is ahead: fetch what it has, unless that is under way or another fetch began in the last HEDGE_S.

        A fetch that takes longer, for this peer is silent or its link slow, does not keep others from being asked.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._free_s and _over(self._fetching, peer):
            self._free_s = now_s + HEDGE_S
            self._fetching[peer] = asyncio.create_task(self._fetch(peer))

    def compare(self, peer: str) -> None:
        """This one is on another chain: fetch its log, at most once in ASK_S."""
        if _over(self._comparing, peer):
            self._comparing[peer] = asyncio.create_task(self._compare(peer))

    async def look_at(self, peer: str) -> None:
        """Whether a peer answers: raises what streams raise. One that is ahead is followed."""
        if await self._history.ask(peer, self._machine().number - 1):
            self.catch_up(peer)

    async def come_in(self, ask: Callable[[], None]) -> None:
        """Look where the others are while away, then `ask` to be counted on; the caller ends it."""
        while True:
            if not self.away:
                ask()
            for peer in self._others()[:1] if self.away else ():
                self.catch_up(peer)
            await asyncio.sleep(ASK_S)

    async def _compare(self, peer: str) -> None:
        try:
            if log := await self._history.ask(peer, None):
                self._parted(peer, log)
        except (BrokenStream, Unreachable, TimeoutError) as error:
            logger.debug("%s does not tell its log: %s", peer, error)
        await asyncio.sleep(ASK_S)

    async def _fetch(self, peer: str) -> None:
        """Fetch the commits after the head, from this peer or from any other whose log reaches back to it."""
        machine = self._machine()
        head = machine.memory.head
        told = await self._history.after(head, list(dict.fromkeys([peer, *self._others()])), machine.notary)
        for decided in told.proven:
            self._receive(told.by, decided)
        for source in told.parted:
            self.compare(source)
        if told.proven or machine.memory.head != head:
            self._free_s = 0.0
            return
        if told.later:
            self._check_outrun(machine, told)
        await asyncio.sleep(RETRY_S[1])

    def _check_outrun(self, machine: CommitChain, told: LogAnswer) -> None:
        """Some logs begin later than the next commit: believe it if it is proven, else refuse it by name."""
        memory, own = machine.memory, id_of(machine.memory.peer)
        voters = voters_of(own, memory.roster, self._trust.allow.listed)
        logs = {id_of(peer): log for peer, log in told.later.items()}
        past, level = ahead(memory.head.number, logs, machine.notary, voters=voters), set(map(id_of, told.level))
        if most(past, voters) and not most(level, voters_of(own, memory.roster, ())):
            self._outrun(memory.number)
            return
        for peer, log in told.later.items():
            first = log[0].commit.number
            why = f"tells commits from {first} on, where {memory.number} is next: nothing proves them"
            self._trust.refusals.note("ballots", peer, why)


def _over(running: Mapping[str, asyncio.Task[None]], peer: str) -> bool:
    """Return whether nothing is under way for this peer."""
    return peer not in running or running[peer].done()
