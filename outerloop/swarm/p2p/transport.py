"""What the protocols above need of a network: hivemind's is `node.Node`; one in memory is enough to test them."""

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
"""(proven peer id of who asks, the request, the stream to answer on)"""


def anybody(peer_id: str) -> bool:
    """Let whoever may see the run ask: `allowed` of what is answered to strangers, within bounds of their own."""
    return True


class Unreachable(Exception):
    """No stream could be opened to a peer."""


class PeerUnreachable(Exception):
    """A peer stayed unreachable for so long that its process must have ended."""


class Transport(Protocol):
    """A peer's way to the others. `trust`: its signatures, its allow-list, what it refused."""

    peer_id: str
    trust: AccessControl

    def open_stream(self, peer_id: str, protocol: str) -> AbstractAsyncContextManager[Stream]:
        """A stream to another peer, closed at the end of the block. Raises Unreachable."""
        ...

    async def serve(self, protocol: str, *, allowed: Callable[[str], bool], handler: Handler) -> None:
        """Answer streams of this protocol, of those that `trust` admits and that are `allowed`: anybody can dial.

        The others are turned away before anything of theirs is read. How much one peer may ask is bounded, most of all
        where `allowed` is `anybody` (admission.py).
        """
        ...


async def persist(attempt: Callable[[], Awaitable[T]], *, peer: str) -> T:
    """Repeat `attempt` with growing pauses until it succeeds; the caller sets the limit in time.

    A broken stream may happen to a slow peer and is tried again for ever. A peer that cannot even be dialled for
    GONE_AFTER_S has ended: PeerUnreachable.
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
