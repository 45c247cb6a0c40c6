"""Outcomes of pairs: what this peer decided as acceptor, and the decisions that it lost as proposer.

    {token} ->   <- {applied}         an acceptor that is asked before it has decided decides no; decisions are final

A doubt is a pair that this peer dropped without knowing the acceptor's decision. It is resolved when the acceptor is
next seen.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable

from outerloop.swarm.gossip.handshake import token_of
from outerloop.swarm.p2p.framing import BrokenStream, Stream
from outerloop.swarm.p2p.transport import PeerUnreachable, Request, Transport, Unreachable, persist
from outerloop.swarm.timeouts import DOUBT_S, VIEW_S, limit

logger = logging.getLogger(__name__)
KEPT = 1000  # decisions that are remembered
Doubt = tuple[str, bytes]
"""Peer id of the acceptor, token of the proposal."""


class PairOutcomes:
    """Decisions and doubts of one peer. `one_sided`: pairs known to be applied by the acceptor but not by this peer."""

    def __init__(self, transport: Transport, *, run: str, allowed: Callable[[str], bool]) -> None:
        self._transport = transport
        self._protocol = f"outerloop/1/{run}/verdict"
        self._allowed = allowed
        self._decided: OrderedDict[tuple[str, bytes], bool] = OrderedDict()
        self._doubts: set[Doubt] = set()
        self._asking: set[asyncio.Task[None]] = set()
        self.one_sided = 0

    async def serve(self) -> None:
        await self._transport.serve(self._protocol, allowed=self._allowed, handler=self._tell)

    def decide(self, proposer: str, token: bytes, *, applied: bool) -> bool:
        """Decide whether a pair counts, unless that was decided before. Return the decision, which is final."""
        verdict = self._decided.setdefault((proposer, token), applied)
        while len(self._decided) > KEPT:
            self._decided.popitem(last=False)
        return verdict

    async def last_word(self, acceptor: str, token: bytes) -> bool | None:
        """Ask the acceptor whether a pair counts. None: it cannot be reached, so the pair does not count here."""
        try:
            async with limit(DOUBT_S):
                return await persist(lambda: self._ask(acceptor, token), peer=acceptor)
        except (PeerUnreachable, TimeoutError):
            return None

    def doubt(self, acceptor: str, token: bytes) -> None:
        """Remember a pair that this peer dropped without knowing the acceptor's decision."""
        self._doubts.add((acceptor, token))

    def heard(self, peer: str) -> None:
        """Resolve the doubts about a peer that has just sent a message."""
        for doubt in [doubt for doubt in self._doubts if doubt[0] == peer]:
            task = asyncio.create_task(self._clear_up(doubt))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _clear_up(self, doubt: Doubt) -> None:
        try:
            applied = await self._ask(*doubt)
        except (BrokenStream, Unreachable, TimeoutError):
            return
        if doubt in self._doubts:
            self._doubts.discard(doubt)
            self.one_sided += applied
            logger.warning("pair with %s: applied by that peer: %s; not applied by this peer", doubt[0], applied)

    async def _ask(self, acceptor: str, token: bytes) -> bool:
        async with limit(VIEW_S), self._transport.open_stream(acceptor, self._protocol) as stream:
            await stream.send_object({"token": token})
            return bool((await stream.receive_object()).get("applied"))

    async def _tell(self, remote: str, request: Request, stream: Stream) -> None:
        await stream.send_object({"applied": self.decide(remote, token_of(request), applied=False)})
        await stream.ended()
