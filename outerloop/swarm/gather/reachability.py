"""Who answers just now: what people are told when a round does not come to an end.

Only who has waited for a round for a while asks, and asks all peers that decide it, again and again while it waits.
What is asked for is the next commit: who finds that others have gone on follows them at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from outerloop.swarm.consensus.commit import majority
from outerloop.swarm.consensus.explain import names
from outerloop.swarm.p2p.framing import BrokenStream
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.timeouts import LOOK_S, VIEW_S, limit


class ReachabilityProbe:
    """`ask` gets a sign of life of a peer, or raises what streams raise. Nobody has been asked before `watch`."""

    def __init__(self, ask: Callable[[str], Awaitable[None]]) -> None:
        self._ask = ask
        self._answered: dict[str, bool] = {}

    async def watch(self, others: Callable[[], Collection[str]]) -> None:
        """Ask all of these, after a while and then more and more rarely; the caller ends it."""
        self._answered, pause_s = {}, LOOK_S[0]
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_S[1])
            asked = list(others())
            answers = await asyncio.gather(*map(self._answers, asked))
            self._answered = dict(zip(asked, answers, strict=True))

    def lacks_majority(self, roster: tuple[str, ...]) -> str:
        """That too few of the roster answer for anything to be decided, in one line; empty when enough do."""
        silent = [peer for peer in roster if not self._answered.get(peer, True)]
        here, needed = len(roster) - len(silent), majority(roster)
        if here >= needed:
            return ""
        return f"{here} of {len(roster)} peers are in reach, a majority is {needed}; no answer from {names(silent)}"

    async def _answers(self, peer: str) -> bool:
        try:
            async with limit(VIEW_S):
                await self._ask(peer)
        except (BrokenStream, Unreachable, TimeoutError):
            return False
        return True
