"""Probe which peers are reachable, to explain to the user why a round does not complete.

A peer probes only after it has waited for a round for a while. It then asks all peers that decide the round, repeatedly
while it waits. It asks for the next commit, so if others are ahead, it catches up with them at once.
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
    """Track which peers answered the last probe; all count as reachable before the first one.

    `ask` contacts a peer. It raises BrokenStream, Unreachable or TimeoutError if the peer does not answer.
    """

    def __init__(self, ask: Callable[[str], Awaitable[None]]) -> None:
        self._ask = ask
        self._answered: dict[str, bool] = {}

    async def watch(self, others: Callable[[], Collection[str]]) -> None:
        """Ask all these peers at growing intervals (LOOK_S), the first time after a pause. The caller cancels it."""
        self._answered, pause_s = {}, LOOK_S[0]
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_S[1])
            asked = list(others())
            answers = await asyncio.gather(*map(self._answers, asked))
            self._answered = dict(zip(asked, answers, strict=True))

    def lacks_majority(self, roster: tuple[str, ...]) -> str:
        """Return in one line that too few peers of the roster answer for a majority; empty if enough do."""
        silent = [peer for peer in roster if not self._answered.get(peer, True)]
        reachable, needed = len(roster) - len(silent), majority(roster)
        if reachable >= needed:
            return ""
        return (
            f"{reachable} of {len(roster)} peers are reachable, a majority is {needed}; no answer from {names(silent)}"
        )

    async def _answers(self, peer: str) -> bool:
        try:
            async with limit(VIEW_S):
                await self._ask(peer)
        except (BrokenStream, Unreachable, TimeoutError):
            return False
        return True
