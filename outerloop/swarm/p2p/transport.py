"""The network interface that the protocols use. `node.Node` implements it with hivemind, the tests in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from outerloop.swarm.access.access_control import AccessControl
from outerloop.swarm.p2p.framing import BrokenStream, Stream
from outerloop.swarm.timeouts import GONE_AFTER_S, GONE_TRIES, RETRY_S

T = TypeVar("T")
Request = dict[str, Any]
Handler = Callable[[str, Request, Stream], Awaitable[None]]
"""Arguments: proven peer id of the requester, the request, the stream to answer on."""


def anybody(peer_id: str) -> bool:
    """Admit every peer. As `allowed` it marks a protocol as public: non-members may use it, within separate limits."""
    return True


class Unreachable(Exception):
    """No stream could be opened to a peer."""


class PeerUnreachable(Exception):
    """A peer was unreachable for GONE_AFTER_S, so its process must have ended."""


class Transport(Protocol):
    """A peer's connection to the other peers. `trust`: its signatures, its allow-list and its rejection log."""

    peer_id: str
    trust: AccessControl

    def open_stream(self, peer_id: str, protocol: str) -> AbstractAsyncContextManager[Stream]:
        """Open a stream to another peer; it is closed at the end of the `with` block. Raises Unreachable."""
        ...

    async def serve(self, protocol: str, *, allowed: Callable[[str], bool], handler: Handler) -> None:
        """Answer streams of this protocol from peers that `trust` admits and for which `allowed` returns true.

        Any peer can dial. Streams of other peers are refused before anything is read from them. The requests of one
        peer are limited, most strictly where `allowed` is `anybody` (admission.py).
        """
        ...


async def persist(attempt: Callable[[], Awaitable[T]], *, peer: str) -> T:
    """Repeat `attempt` with growing pauses until it succeeds, and return its result. The caller sets the timeout.

    A slow peer may cause a broken stream, so broken streams and timeouts are retried without limit. Raises
    PeerUnreachable if the peer could not be dialled for GONE_AFTER_S and more than GONE_TRIES attempts.
    """
    loop = asyncio.get_running_loop()
    pause_s, failed_dials, since = RETRY_S[0], 0, 0.0
    while True:
        try:
            return await attempt()
        except Unreachable as error:
            since = since if failed_dials else loop.time()
            failed_dials += 1
            if failed_dials > GONE_TRIES and loop.time() - since > GONE_AFTER_S:
                raise PeerUnreachable(f"{peer} is gone ({error})") from error
        except (BrokenStream, TimeoutError):
            failed_dials = 0
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, RETRY_S[1])
