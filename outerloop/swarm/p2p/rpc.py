"""Base of the services that peers of a run offer each other: requests and answers on streams of one protocol.

    class Clock(RpcService):
        service = "clock"                                     # protocol outerloop/1/<run>/clock

        async def time_at(self, peer_id: str) -> float:       # client
            return (await self._call(peer_id, {}, within_s=5.0))["time_s"]

        async def _answer(self, remote, request, stream):     # server
            await stream.send_object({"time_s": time.time()})
            await stream.ended()

A client that exchanges more than one request and one answer opens the stream itself (`_stream_to`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import ClassVar

from outerloop.swarm.p2p.framing import Stream
from outerloop.swarm.p2p.transport import Request, Transport, anybody
from outerloop.swarm.timeouts import limit


class RpcService(ABC):
    """Client and server of one service. `allowed`: returns whether a peer id may call it; by default every peer may."""

    service: ClassVar[str]
    """Last part of the protocol name. It is sent on the wire: peers with different names do not find each other."""

    def __init__(self, transport: Transport, *, run: str, allowed: Callable[[str], bool] = anybody) -> None:
        self._transport = transport
        self._protocol = protocol_name(run, self.service)
        self._allowed = allowed

    async def serve(self) -> None:
        """Start to answer requests."""
        await self._transport.serve(self._protocol, allowed=self._allowed, handler=self._answer)

    @abstractmethod
    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        """Answer the request with which the peer `remote` (its proven id) has opened a stream.

        The stream is closed when this returns. Raise Unreadable if the request is malformed.
        """

    def _stream_to(self, peer_id: str) -> AbstractAsyncContextManager[Stream]:
        """Open a stream to this service of another peer. Raises Unreachable."""
        return self._transport.open_stream(peer_id, self._protocol)

    async def _call(self, peer_id: str, request: Request, *, within_s: float) -> Request:
        """Send one request and return the answer. Raises BrokenStream, Unreachable, TimeoutError."""
        async with limit(within_s), self._stream_to(peer_id) as stream:
            await stream.send_object(request)
            return await stream.receive_object()


def protocol_name(run: str, service: str) -> str:
    """Return the protocol under which a service of a run is reached."""
    return f"outerloop/1/{run}/{service}"
