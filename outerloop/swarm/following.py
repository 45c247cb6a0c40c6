"""Where others are ahead of this peer: the commits in between, fetched once at a time, and back into the roster.

somebody is ahead          ->   the commits after the last one here, from it or else from any other
most are, no log reaches   ->   this peer is outrun (proof.py): it has to take over the state
not counted on             ->   it says that it is there, again and again, until it is
on another chain           ->   their log, to be compared with the one here (forks.py)

That a log does not reach back, or commits that do not follow, change nothing unless they are proven: refused by name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from outerloop.swarm.agreement import Agreement
from outerloop.swarm.ballots import Decided
from outerloop.swarm.framing import BrokenStream, Unreadable
from outerloop.swarm.history import History
from outerloop.swarm.proof import ahead, most, unproven, voters_of
from outerloop.swarm.roster import id_of
from outerloop.swarm.timeouts import ASK_S
from outerloop.swarm.transport import Unreachable
from outerloop.swarm.trust import Trust

logger = logging.getLogger(__name__)


class Following:
    """`machine`: the agreement here; `others`: who decides the round at hand, this peer apart.

    `receive` takes a commit and whom it is from, `outrun` the number of a round whose commit nobody tells any more,
    `parted` a peer and the log of its chain.
    `away`: the trainer does not have the state yet that the chain here begins with.
    """

    def __init__(
        self,
        history: History,
        trust: Trust,
        *,
        machine: Callable[[], Agreement],
        others: Callable[[], Sequence[str]],
        receive: Callable[[str, Decided], None],
        outrun: Callable[[int], None],
        parted: Callable[[str, Sequence[Decided]], None],
    ) -> None:
        self._history = history
        self._trust = trust
        self._machine = machine
        self._others = others
        self._receive = receive
        self._outrun = outrun
        self._parted = parted
        self._comparing: dict[str, asyncio.Task[None]] = {}
        self._fetching: asyncio.Task[None] | None = None
        self.away = False

    def catch_up(self, peer: str) -> None:
        """This one is ahead."""
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.create_task(self._fetch(peer))

    def compare(self, peer: str) -> None:
        """This one is on another chain: its log is fetched, once at a time and not at once again."""
        if peer not in self._comparing or self._comparing[peer].done():
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
        """The commits after the head, from the first of the peers whose log reaches back to it."""
        machine = self._machine()
        head = machine.memory.head
        later: dict[str, list[Decided]] = {}
        level: set[str] = set()
        for source in dict.fromkeys([peer, *self._others()]):
            log = await self._told(source, head.number)
            if log and log[0].commit.number > head.number + 1:
                later[source] = log
            elif log and (why := unproven(head, log[0], machine.notary)):
                self._refuse(source, why)
            elif log:
                for decided in log:
                    self._receive(source, decided)
                return
            elif log is not None:
                level.add(id_of(source))
        if later:
            self._check_outrun(machine, later, level)

    def _check_outrun(self, machine: Agreement, later: dict[str, list[Decided]], level: set[str]) -> None:
        """These logs begin later than the next commit: believe it if it is proven, else refuse it by name."""
        memory, own = machine.memory, id_of(machine.memory.peer)
        voters = voters_of(own, memory.roster, self._trust.allow.listed)
        logs = {id_of(peer): log for peer, log in later.items()}
        past = ahead(memory.head.number, logs, machine.notary, voters=voters)
        if most(past, voters) and not most(level, voters_of(own, memory.roster, ())):
            self._outrun(memory.number)
            return
        for peer, log in later.items():
            first = log[0].commit.number
            self._refuse(peer, f"tells commits from {first} on, where {memory.number} is next: nothing proves them")

    async def _told(self, peer: str, after: int) -> list[Decided] | None:
        """Return what a peer tells of the commits after this number; None: it does not answer, or tells nonsense."""
        try:
            return await self._history.ask(peer, after)
        except (BrokenStream, Unreachable, TimeoutError) as error:
            if isinstance(error, Unreadable):
                self._refuse(peer, str(error))
            logger.debug("%s does not tell the commits since %d: %s", peer, after, error)
            return None

    def _refuse(self, peer: str, why: str) -> None:
        self._trust.refusals.note("ballots", peer, why)
