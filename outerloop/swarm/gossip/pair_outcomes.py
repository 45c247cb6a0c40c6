"""How pairs ended: what this peer decided as acceptor, and the last words that it lost as proposer.

    {token} ->   <- {applied}         whoever is asked before it has decided decides no; the first word stands

A doubt is a pair that this peer dropped because nobody could tell; it is cleared up when the other is heard of again.
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
KEPT = 1000
Doubt = tuple[str, bytes]
"""Peer id of the acceptor, token of the proposal."""


class PairOutcomes:
    """`one_sided`: pairs that the other applied and this peer did not, as far as it has heard."""

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
        """Whether a pair counts, from now on for ever."""
        verdict = self._decided.setdefault((proposer, token), applied)
        while len(self._decided) > KEPT:
            self._decided.popitem(last=False)
        return verdict

    async def last_word(self, acceptor: str, token: bytes) -> bool | None:
        """Whether a pair counts whose last word was lost. None: nobody can tell, so it does not."""
        try:
            async with limit(DOUBT_S):
                return await persist(lambda: self._ask(acceptor, token), peer=acceptor)
        except (PeerUnreachable, TimeoutError):
            return None

    def doubt(self, acceptor: str, token: bytes) -> None:
        """This peer has dropped a pair without knowing whether the other did."""
        self._doubts.add((acceptor, token))

    def heard(self, peer: str) -> None:
        """A sign of life."""
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
            logger.warning("pair with %s: applied there %s, here not", doubt[0], applied)

    async def _ask(self, acceptor: str, token: bytes) -> bool:
        async with limit(VIEW_S), self._transport.open_stream(acceptor, self._protocol) as stream:
            await stream.send_object({"token": token})
            return bool((await stream.receive_object()).get("applied"))

    async def _tell(self, remote: str, request: Request, stream: Stream) -> None:
        await stream.send_object({"applied": self.decide(remote, token_of(request), applied=False)})
        await stream.ended()
