"""The network interface that the protocols use. `node.Node` implements it with hivemind; tests implement it in memory.

`RpcService` is the base class of the services that a run's peers offer each other: requests and answers on the streams
of one protocol.

    class Clock(RpcService):
        service = "clock"                                     # protocol outerloop/1/<run>/clock

        async def time_at(self, peer_id: str) -> float:       # client
            return (await self._call(peer_id, {}, within_s=5.0))["time_s"]

        async def _answer(self, remote, request, stream):     # server
            await stream.send_object({"time_s": time.time()})
            await stream.ended()

A client that needs more than one request and one answer opens the stream itself (`_stream_to`).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar, Protocol, TypeVar

from outerloop.swarm.access.access_control import AccessControl
from outerloop.swarm.p2p.framing import BrokenStream, Stream
from outerloop.swarm.timeouts import GONE_AFTER_S, GONE_TRIES, RETRY_S, limit

T = TypeVar("T")
Request = dict[str, Any]
Handler = Callable[[str, Request, Stream], Awaitable[None]]
"""Request handler. Arguments: the requester's authenticated peer id, the request, the stream for the answer."""


def anybody(peer_id: str) -> bool:
    """Admit every peer. A service with `allowed=anybody` is public: separate limits apply to non-members."""
    return True


class Unreachable(Exception):
    """No stream could be opened to a peer."""


class PeerUnreachable(Exception):
    """A peer was unreachable for more than GONE_AFTER_S, so its process is assumed to have ended."""


class Transport(Protocol):
    """A peer's connection to the other peers. `trust`: its signatures, allow-list and rejection log."""

    peer_id: str
    trust: AccessControl

    def open_stream(self, peer_id: str, protocol: str) -> AbstractAsyncContextManager[Stream]:
        """Open a stream to another peer for the duration of a `with` block.

        Raises Unreachable if the stream cannot be opened.
        """
        ...

    async def serve(self, protocol: str, *, allowed: Callable[[str], bool], handler: Handler) -> None:
        """Answer streams of this protocol from peers that `trust` admits and for which `allowed` returns True.

        Any peer can dial this peer, but the streams of peers that are not admitted are refused before any data is read.
        Each peer's requests are limited, most strictly if `allowed` is `anybody` (stream_gate.py).
        """
        ...


class FailedDials:
    """Counts consecutive failed dials of a peer.

    The peer is gone once more than GONE_TRIES consecutive dials have failed over more than GONE_AFTER_S.
    """

    def __init__(self) -> None:
        self._count, self._since_s = 0, 0.0

    def is_gone_after(self, error: Exception) -> bool:
        """Record a failed attempt to reach the peer. Return whether the peer is gone.

        An error other than Unreachable comes from a stream that was opened, so it ends the series of failed dials.
        """
        if not isinstance(error, Unreachable):
            self._count = 0
            return False
        now_s = asyncio.get_running_loop().time()
        self._since_s = self._since_s if self._count else now_s
        self._count += 1
        return self._count > GONE_TRIES and now_s - self._since_s > GONE_AFTER_S


async def persist(attempt: Callable[[], Awaitable[T]], *, peer: str) -> T:
    """Retry `attempt` with growing pauses until it succeeds, and return its result. The caller sets the time limit.

    Broken streams and timeouts are retried without limit, because a slow peer may cause them. Raises PeerUnreachable
    once the peer is gone.
    """
    pause_s, dials = RETRY_S[0], FailedDials()
    while True:
        try:
            return await attempt()
        except (BrokenStream, TimeoutError, Unreachable) as error:
            if dials.is_gone_after(error):
                raise PeerUnreachable(f"{peer} is gone ({error})") from error
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, RETRY_S[1])


class RpcService(ABC):
    """Client and server of a service. `allowed`: returns whether a peer (id) may call it; by default, any peer may."""

    service: ClassVar[str]
    """Last part of the protocol name. It is sent on the wire, so both peers must use the same name."""

    def __init__(self, transport: Transport, *, run: str, allowed: Callable[[str], bool] = anybody) -> None:
        self._transport = transport
        self._protocol = protocol_name(run, self.service)
        self._allowed = allowed

    async def serve(self) -> None:
        """Start answering requests."""
        await self._transport.serve(self._protocol, allowed=self._allowed, handler=self._answer)

    @abstractmethod
    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        """Answer `request`, the first message on a stream opened by the peer `remote` (its authenticated id).

        The stream is closed when this method returns. Implementations raise Unreadable if the request is malformed.
        """

    def _stream_to(self, peer_id: str) -> AbstractAsyncContextManager[Stream]:
        """Open a stream to this service on another peer. Raises Unreachable if that fails."""
        return self._transport.open_stream(peer_id, self._protocol)

    async def _call(self, peer_id: str, request: Request, *, within_s: float) -> Request:
        """Send one request and return the answer.

        Raises BrokenStream, Unreachable or TimeoutError if no readable answer arrives in time.
        """
        async with limit(within_s), self._stream_to(peer_id) as stream:
            await stream.send_object(request)
            return await stream.receive_object()


def protocol_name(run: str, service: str) -> str:
    """Return the protocol name of a service in a run."""
    return f"outerloop/1/{run}/{service}"
