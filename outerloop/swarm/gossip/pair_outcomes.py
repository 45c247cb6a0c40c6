"""Exchange of pair outcomes. A proposer asks the acceptor of a pair whether the pair counts; every peer answers.

    {token} ->   <- {applied}         false if the acceptor has not decided yet; this is then its final decision

A pair is in doubt if its proposer dropped it without knowing the acceptor's decision. The proposer asks the acceptor
again when the acceptor is next seen.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from outerloop.swarm.gossip.handshake import token_of
from outerloop.swarm.gossip.pair import Decisions, Pair
from outerloop.swarm.p2p.framing import BrokenStream, Stream
from outerloop.swarm.p2p.network_thread import BackgroundTasks
from outerloop.swarm.p2p.transport import PeerUnreachable, Request, RpcService, Transport, Unreachable, persist
from outerloop.swarm.timeouts import DOUBT_S, VIEW_S, limit

logger = logging.getLogger(__name__)


class PairOutcomes(RpcService):
    """One peer's decisions on pairs, and its pairs in doubt.

    `one_sided`: number of pairs in doubt that the acceptor later reported as applied.
    """

    service = "verdict"

    def __init__(self, transport: Transport, *, run: str, allowed: Callable[[str], bool]) -> None:
        super().__init__(transport, run=run, allowed=allowed)
        self._in_doubt: set[Pair] = set()
        self._asking = BackgroundTasks()
        self.decisions = Decisions()
        self.one_sided = 0

    async def learn(self, pair: Pair) -> None:
        """Ask the acceptor of a bound pair for its decision. If it cannot be reached, the pair stays bound."""
        try:
            async with limit(DOUBT_S):
                applied = await persist(lambda: self._ask(pair), peer=pair.partner)
        except (PeerUnreachable, TimeoutError):
            return
        pair.learn(applied=applied)

    def doubt(self, pair: Pair) -> None:
        """Record a pair that this peer dropped without knowing the acceptor's decision."""
        self._in_doubt.add(pair)

    def resolve(self, acceptor: str) -> None:
        """Ask `acceptor`, which has just sent a message, for its decisions on pairs in doubt."""
        for pair in [pair for pair in self._in_doubt if pair.partner == acceptor]:
            self._asking.start(self._resolve(pair))

    async def _resolve(self, pair: Pair) -> None:
        try:
            applied = await self._ask(pair)
        except (BrokenStream, Unreachable, TimeoutError):
            return
        if pair in self._in_doubt:
            self._in_doubt.discard(pair)
            self.one_sided += applied
            logger.warning("this peer dropped its pair with %s; applied by that peer: %s", pair.partner, applied)

    async def _ask(self, pair: Pair) -> bool:
        answer = await self._call(pair.partner, {"token": pair.token}, within_s=VIEW_S)
        return bool(answer.get("applied"))

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        await stream.send_object({"applied": self.decisions.decide(remote, token_of(request), applied=False)})
        await stream.ended()
