"""Exchange of pair outcomes. A proposer asks the acceptor of a pair whether the pair counts; every peer answers.

    {token} ->   <- {applied}         false if the acceptor has not decided yet; this is then its final decision

A pair is in doubt if its proposer dropped it without knowing the acceptor's decision. The proposer asks the acceptor
again when the acceptor sends its next message. A member could leave many pairs in doubt, and send many messages without
answering. So this peer remembers at most MAX_IN_DOUBT pairs per acceptor, and asks each acceptor on one stream at a
time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable

from outerloop.swarm.gossip.handshake import token_of
from outerloop.swarm.gossip.pair import Decisions, Pair
from outerloop.swarm.p2p.framing import BrokenStream, Stream
from outerloop.swarm.p2p.transport import PeerUnreachable, Request, RpcService, Transport, Unreachable, persist
from outerloop.swarm.timeouts import DOUBT_S, VIEW_S, limit

logger = logging.getLogger(__name__)
MAX_IN_DOUBT = 8
"""Maximum number of pairs in doubt that are remembered per acceptor. The oldest is forgotten first. An honest acceptor
that is reachable again is asked about all of them, so more than one is rare."""


class PairOutcomes(RpcService):
    """One peer's decisions on pairs, and its pairs in doubt.

    `one_sided`: number of pairs in doubt that the acceptor later reported as applied. Forgotten pairs are not counted.
    """

    service = "verdict"

    def __init__(self, transport: Transport, *, run: str, allowed: Callable[[str], bool]) -> None:
        super().__init__(transport, run=run, allowed=allowed)
        self._in_doubt: defaultdict[str, deque[Pair]] = defaultdict(lambda: deque(maxlen=MAX_IN_DOUBT))  # by acceptor
        self._asking: dict[str, asyncio.Task[None]] = {}  # by acceptor
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
        self._in_doubt[pair.partner].append(pair)

    def resolve(self, acceptor: str) -> None:
        """Ask `acceptor`, which has just sent a message, for its decisions on pairs in doubt.

        Does nothing if the acceptor is already being asked.
        """
        if acceptor in self._in_doubt and acceptor not in self._asking:
            self._asking[acceptor] = asyncio.create_task(self._resolve(acceptor))

    async def _resolve(self, acceptor: str) -> None:
        """Ask about one pair at a time, until all are resolved or the acceptor does not answer."""
        try:
            while acceptor in self._in_doubt:
                pair = self._in_doubt[acceptor][0]
                self._settle(pair, applied=await self._ask(pair))
        except (BrokenStream, Unreachable, TimeoutError):
            return
        finally:
            del self._asking[acceptor]

    def _settle(self, pair: Pair, *, applied: bool) -> None:
        pairs = self._in_doubt[pair.partner]
        if pair in pairs:  # the pair may have been forgotten during the request
            pairs.remove(pair)
            self.one_sided += applied
            logger.warning("this peer dropped its pair with %s; applied by that peer: %s", pair.partner, applied)
        if not pairs:
            del self._in_doubt[pair.partner]

    async def _ask(self, pair: Pair) -> bool:
        answer = await self._call(pair.partner, {"token": pair.token}, within_s=VIEW_S)
        return bool(answer.get("applied"))

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        await stream.send_object({"applied": self.decisions.decide(remote, token_of(request), applied=False)})
        await stream.ended()
