"""Broadcast of readiness for a pair: a small notice to each chosen peer, always with the latest state.

    {round: [number, fragment]} or {round: nil} ->      the receiver closes the stream when it has read the notice

If a notice cannot be delivered, the sender pauses its notices to that peer. After the pause it sends the latest state,
if there has been news meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from outerloop.swarm.p2p.framing import BrokenStream, Stream, Unreadable
from outerloop.swarm.p2p.transport import Request, Transport, Unreachable
from outerloop.swarm.timeouts import NOTICE_S, UNHEARD_S, limit
from outerloop.types import Round

logger = logging.getLogger(__name__)


class ReadyBroadcast:
    """Sends notices to other peers and passes received ones to `hear(peer id, its round or None)`."""

    def __init__(
        self,
        transport: Transport,
        *,
        run: str,
        allowed: Callable[[str], bool],
        hear: Callable[[str, Round | None], None],
    ) -> None:
        self._transport = transport
        self._protocol = f"outerloop/1/{run}/ready"
        self._allowed = allowed
        self._hear = hear
        self._news: dict[str, Round | None] = {}  # peer -> latest state that has not been sent to it yet
        self._telling: dict[str, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        await self._transport.serve(self._protocol, allowed=self._allowed, handler=self._heard)

    def tell(self, peers: Iterable[str], round: Round | None) -> None:
        """Notify these peers that this peer is ready with a round, or (None) not ready. Returns at once."""
        for peer in peers:
            self._news[peer] = round
            if peer not in self._telling:
                self._telling[peer] = asyncio.create_task(self._tell_all(peer))

    async def _tell_all(self, peer: str) -> None:
        """Send notices to a peer one after the other, so that no older notice arrives after a newer one."""
        try:
            while peer in self._news:
                try:
                    await self._tell(peer, self._news.pop(peer))
                except (BrokenStream, Unreachable, TimeoutError) as error:
                    logger.debug("readiness could not be sent to %s: %s", peer, error)
                    await asyncio.sleep(UNHEARD_S)
        finally:
            del self._telling[peer]

    async def _tell(self, peer: str, round: Round | None) -> None:
        async with limit(NOTICE_S), self._transport.open_stream(peer, self._protocol) as stream:
            await stream.send_object({"round": None if round is None else [round.number, round.fragment]})
            await stream.ended()

    async def _heard(self, remote: str, request: Request, stream: Stream) -> None:
        match request.get("round"):
            case None:
                self._hear(remote, None)
            case [int(number), int(fragment)]:
                self._hear(remote, Round(number, fragment))
            case other:
                raise Unreadable(
                    f"the round of a notice is of type {type(other).__name__}, not [number, fragment] or nil"
                )
