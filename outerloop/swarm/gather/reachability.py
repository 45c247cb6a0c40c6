"""Check which peers answer, to explain to the user why a round does not complete.

A peer starts to probe once it has waited for a round for a while. It then asks all other peers of the roster
repeatedly, until the wait ends. Each request asks for the next commit, so a peer that is behind catches up at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from outerloop.swarm.consensus.explain import names
from outerloop.swarm.consensus.quorum import Quorum
from outerloop.swarm.p2p.framing import BrokenStream
from outerloop.swarm.p2p.transport import Unreachable
from outerloop.swarm.timeouts import LOOK_S, VIEW_S, limit


class ReachabilityProbe:
    """Tracks which peers answered the last probe. Before the first probe, all peers count as reachable.

    `ask` contacts a peer. It raises BrokenStream, Unreachable or TimeoutError if the peer does not answer.
    """

    def __init__(self, ask: Callable[[str], Awaitable[None]]) -> None:
        self._ask = ask
        self._answered: dict[str, bool] = {}

    async def watch(self, others: Callable[[], Collection[str]]) -> None:
        """Probe the peers that `others` returns repeatedly, with growing pauses (LOOK_S), until cancelled."""
        self._answered, pause_s = {}, LOOK_S[0]
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_S[1])
            asked = list(others())
            answers = await asyncio.gather(*map(self._answers, asked))
            self._answered = dict(zip(asked, answers, strict=True))

    def lacks_quorum(self, roster: tuple[str, ...], quorum: Quorum, *, ahead: str) -> str:
        """Return a one-line message if too few of the roster's peers are reachable to decide a round, else "".

        `ahead`: if other peers report later commits, what to do about that (comeback.py), else "". The message contains
        `ahead` in place of the usual advice, because restarting without the absent peers would then fork the run.
        """
        silent = [peer for peer in roster if not self._answered.get(peer, True)]
        reachable, needed = len(roster) - len(silent), quorum.of(roster)
        if reachable >= needed:
            return ""
        remedy = ahead or (
            "start them again, or, if they are lost for good, restart all others with"
            f" exchange.reform=true exchange.peers={reachable}"
        )
        return (
            f"{reachable} of {len(roster)} peers are reachable, but {quorum.name} is {needed};"
            f" no answer from {names(silent)}; {remedy}"
        )

    async def _answers(self, peer: str) -> bool:
        try:
            async with limit(VIEW_S):
                await self._ask(peer)
        except (BrokenStream, Unreachable, TimeoutError):
            return False
        return True
