"""Where others are ahead of this peer: the commits in between, fetched once at a time, and back into the roster.

somebody is ahead      ->   the commits after the last one here, from it or else from any other
no log reaches back    ->   this peer is outrun: it has to take over the state
not counted on         ->   it says that it is there, again and again, until it is
on another chain       ->   their log, to be compared with the one here (forks.py)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from outerloop.swarm.ballots import Decided
from outerloop.swarm.framing import BrokenStream
from outerloop.swarm.history import History, TooShort
from outerloop.swarm.timeouts import ASK_S
from outerloop.swarm.transport import Unreachable

logger = logging.getLogger(__name__)


class Following:
    """`number`: of the round at hand; `others`: who decides it, this peer apart.

    `receive` takes a commit and whom it is from, `outrun` the number of a round whose commit nobody tells any more,
    `parted` a peer and the log of its chain.
    `away`: the trainer does not have the state yet that the chain here begins with.
    """

    def __init__(
        self,
        history: History,
        *,
        number: Callable[[], int],
        others: Callable[[], Sequence[str]],
        receive: Callable[[str, Decided], None],
        outrun: Callable[[int], None],
        parted: Callable[[str, Sequence[Decided]], None],
    ) -> None:
        self._history = history
        self._number = number
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
        if await self._history.ask(peer, self._number() - 1) != []:
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
        number = self._number()
        try:
            for source, decided in await self._history.ask_any(dict.fromkeys([peer, *self._others()]), number - 1):
                self._receive(source, decided)
        except TooShort:
            self._outrun(number)
