"""Catch up with peers that are ahead: fetch the missing commits, and ask to rejoin the roster.

a peer is ahead                    ->   fetch the commits after the local head, from it or from any other (log_rpc.py)
most are, no log reaches back      ->   this peer is outrun (proof.py): it has to download the state
this peer is not in the roster     ->   ask to join, repeatedly, until it is in
a peer is on another chain         ->   fetch its log and compare it with the local one (forks.py)

A log that does not reach back, and commits that do not follow the local head, have no effect without proof: they are
rejected and logged with the sender's name. Any peer can claim to be ahead. So after a fetch that brought nothing, the
same peer cannot cause another one for RETRY_S.
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
    """The fetches that keep one peer up to date with the others.

    Args:
        machine: returns the local agreement.
        others: returns the peers that decide the current round, except this one.
        receive: called with a peer and a commit that it sent.
        outrun: called with the number of a round whose commit no peer can provide any more.
        parted: called with a peer and the log of its chain.

    `away`: True while the trainer lacks the state that the local chain begins with.
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
        """Fetch the missing commits from a peer that is ahead.

        Does nothing if a fetch from this peer is running or any fetch began in the last HEDGE_S. A fetch that takes
        longer, because the peer is silent or its link slow, does not prevent fetches from other peers.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._free_s and _over(self._fetching, peer):
            self._free_s = now_s + HEDGE_S
            self._fetching[peer] = asyncio.create_task(self._fetch(peer))

    def compare(self, peer: str) -> None:
        """Fetch the log of a peer that is on another chain, at most once in ASK_S."""
        if _over(self._comparing, peer):
            self._comparing[peer] = asyncio.create_task(self._compare(peer))

    async def look_at(self, peer: str) -> None:
        """Ask a peer for newer commits, and catch up with it if it has any.

        Raises BrokenStream, Unreachable, TimeoutError if it does not answer.
        """
        if await self._history.ask(peer, self._machine().number - 1):
            self.catch_up(peer)

    async def come_in(self, ask: Callable[[], None]) -> None:
        """Follow the others while away, then `ask` to join the roster, every ASK_S until the caller cancels this."""
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
            logger.debug("asking %s for its log failed: %s", peer, error)
        await asyncio.sleep(ASK_S)

    async def _fetch(self, peer: str) -> None:
        """Fetch the commits after the local head, from this peer or from any other whose log reaches back to it."""
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
        """Check logs that begin after the next commit: this peer is outrun if they prove it, else reject them."""
        memory, own = machine.memory, id_of(machine.memory.peer)
        voters = voters_of(own, memory.roster, self._trust.allow.listed)
        logs = {id_of(peer): log for peer, log in told.later.items()}
        past, level = ahead(memory.head.number, logs, machine.notary, voters=voters), set(map(id_of, told.level))
        if most(past, voters) and not most(level, voters_of(own, memory.roster, ())):
            self._outrun(memory.number)
            return
        for peer, log in told.later.items():
            first = log[0].commit.number
            why = f"sent commits from {first} on, where {memory.number} is next: nothing proves them"
            self._trust.refusals.note("ballots", peer, why)


def _over(running: Mapping[str, asyncio.Task[None]], peer: str) -> bool:
    """Return whether no task is running for this peer."""
    return peer not in running or running[peer].done()
