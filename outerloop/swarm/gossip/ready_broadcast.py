"""Broadcast of this peer's readiness for a pair: a small notice to each chosen peer, always with the latest state.

    {round: [number, fragment]} or {round: nil} ->      the receiver closes the stream after it has read the notice

If a notice cannot be delivered, the sender pauses its notices to that peer. After the pause, it sends the latest state:
that of the notice, or a newer one. After MAX_REPEATS repetitions in a row that also fail, it sends only newer states.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from outerloop.swarm.p2p.framing import BrokenStream, Stream, Unreadable
from outerloop.swarm.p2p.transport import Request, RpcService, Transport, Unreachable
from outerloop.swarm.timeouts import NOTICE_S, UNHEARD_S, limit
from outerloop.types import Round

logger = logging.getLogger(__name__)
MAX_REPEATS = 3


class ReadyBroadcast(RpcService):
    """Sends notices to other peers, and passes each received notice to `on_notice(peer id, its round or None)`."""

    service = "ready"

    def __init__(
        self,
        transport: Transport,
        *,
        run: str,
        allowed: Callable[[str], bool],
        on_notice: Callable[[str, Round | None], None],
    ) -> None:
        super().__init__(transport, run=run, allowed=allowed)
        self._on_notice = on_notice
        self._unsent: dict[str, Round | None] = {}  # peer -> latest state not yet sent to it
        self._sending: dict[str, asyncio.Task[None]] = {}

    def send(self, peers: Iterable[str], round: Round | None) -> None:
        """Notify `peers` that this peer is ready for `round`, or that it is not ready (None). Returns at once."""
        for peer in peers:
            self._unsent[peer] = round
            if peer not in self._sending:
                self._sending[peer] = asyncio.create_task(self._send_all(peer))

    async def _send_all(self, peer: str) -> None:
        """Send notices to a peer one at a time, so that no older notice arrives after a newer one."""
        failures = 0
        try:
            while peer in self._unsent:
                round = self._unsent.pop(peer)
                try:
                    await self._send(peer, round)
                    failures = 0
                except (BrokenStream, Unreachable, TimeoutError) as error:
                    logger.debug("could not send a readiness notice to %s: %s", peer, error)
                    failures += 1
                    if failures <= MAX_REPEATS:
                        self._unsent.setdefault(peer, round)
                    await asyncio.sleep(UNHEARD_S)
        finally:
            del self._sending[peer]

    async def _send(self, peer: str, round: Round | None) -> None:
        async with limit(NOTICE_S), self._stream_to(peer) as stream:
            await stream.send_object({"round": None if round is None else [round.number, round.fragment]})
            await stream.ended()

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        match request.get("round"):
            case None:
                self._on_notice(remote, None)
            case [int(number), int(fragment)]:
                self._on_notice(remote, Round(number, fragment))
            case unreadable:
                raise Unreadable(
                    f"the round of a notice must be [number, fragment] or nil; got a {type(unreadable).__name__}"
                )
