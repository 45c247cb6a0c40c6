"""State for those who come late: every donor copies its own at the same landing, and goes on training.

    {number} ->   <- {manifest: [sha256, bytes, signature]} once this peer has landed that commit and copied its state,
                  <- {} when it is past it, or has not come to it for so long that it is to be asked again

A joiner names a commit that is about to be. Donors whose states are equal have equal manifests (manifest.py), and the
chunks go out by their hashes (bulk.py).

A copy costs this peer its time and its memory, so few are made, whatever is asked for and by however many:

    demand     one a peer, the last one; for a commit that is landed next or is after that, else it waits until it is
    copied     if no other was wanted in the COPY_EVERY commits before it, or if its number is a multiple of COPY_EVERY:
               of those every donor copies, so that nobody can make the donors copy at different commits for ever
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from outerloop.swarm.p2p.framing import Stream, Unreadable
from outerloop.swarm.p2p.transport import Request, Transport
from outerloop.swarm.state_transfer.manifest import CONTEXT, Manifest, cut
from outerloop.swarm.storage import Buffer
from outerloop.swarm.timeouts import POLL_S, STATE_KEPT_S, limit
from outerloop.swarm.transfer.bulk import Bulk
from outerloop.swarm.transfer.rate_limiter import RateLimiter

FURTHEST_AHEAD = 2
"""Commits after the last one landed here that a state may be demanded of: who asks knows that one, or the next."""
COPY_EVERY = 4
"""Commits; in as many that follow one another at most two states are copied, one of them as of a multiple of it."""


def next_common(number: int) -> int:
    """Return the first commit from this number on whose state every donor copies for whoever asks."""
    return -(-number // COPY_EVERY) * COPY_EVERY


class Donor:
    """`wants` may be asked by the trainer's thread, all else belongs to the network's.

    `sitting`: what manifests are signed for.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        run: str,
        sitting: Callable[[], str],
        allowed: Callable[[str], bool],
        pace: RateLimiter | None = None,
    ) -> None:
        self._transport = transport
        self._allowed = allowed
        self._protocol = protocol_of(run)
        self._sitting = sitting
        self._held = _Held(asked=self._hold_on)
        self.bulk = Bulk(transport, self._held, run=content_of(run), allowed=allowed, pace=pace)
        self._demands: dict[str, int] = {}
        self._landed = -1
        self._copied = -COPY_EVERY  # the last commit that was copied
        self._hashing = -1  # one that was copied, and is not held yet
        self._news = asyncio.Event()
        self._drop: asyncio.TimerHandle | None = None

    async def serve(self) -> None:
        await self.bulk.serve()
        await self._transport.serve(self._protocol, allowed=self._allowed, handler=self._tell)

    def wants(self, number: int) -> bool:
        """Whether somebody asked for the state as of this commit."""
        return number in list(self._demands.values())

    def landed(self, number: int, *, copied: bool) -> None:
        """This peer is past a commit. Not `copied`: whoever asks for it too late is told so."""
        self._landed = number
        if copied:
            self._copied = self._hashing = number
        self._demands = {peer: wanted for peer, wanted in self._demands.items() if wanted > number}
        self._tell_waiting()

    def hold(self, content: bytes, manifest: Manifest) -> None:
        """Give this state, until nobody has asked for it for a while."""
        self._held.put(content, manifest)
        self._hashing = -1
        self._hold_on()
        self._tell_waiting()

    def release(self, number: int) -> None:
        """Give the state as of this commit no longer, if that is the one that is held."""
        if self._held.number == number:
            self._held.clear()

    async def _tell(self, remote: str, request: Request, stream: Stream) -> None:
        number = request.get("number")
        if type(number) is not int or number < 0:
            raise Unreadable("a request without the number of a commit")
        try:
            async with limit(POLL_S):
                while self._held.number != number and (number > self._landed or number == self._hashing):
                    self._demand(remote, number)
                    await self._news.wait()
        except TimeoutError:
            pass
        held = self._held.number == number
        if held:
            self._hold_on()
        await stream.send_object({"manifest": [*self._held.named, self._signature(number)]} if held else {})
        await stream.ended()

    def _demand(self, peer: str, number: int) -> None:
        """Remember what this peer wants, if a copy may be made of it."""
        others = {other: wanted for other, wanted in self._demands.items() if other != peer}
        last = max([self._copied, *others.values()])
        rested = number - last >= COPY_EVERY or number in others.values() or number % COPY_EVERY == 0
        if self._landed < number <= self._landed + FURTHEST_AHEAD and rested:
            self._demands = {**others, peer: number}

    def _signature(self, number: int) -> bytes:
        """Of what is named, as the state as of this commit."""
        return self._transport.trust.signatures.sign(CONTEXT, self._sitting(), number, *self._held.named)

    def _hold_on(self) -> None:
        if self._drop is not None:
            self._drop.cancel()
        self._drop = asyncio.get_running_loop().call_later(STATE_KEPT_S, self._held.clear)

    def _tell_waiting(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class _Held:
    """One state: its manifest and its chunks by sha256, `asked` for. `named`: sha256 and bytes of the manifest."""

    def __init__(self, *, asked: Callable[[], None]) -> None:
        self._asked = asked
        self.number = -1
        self.named = b"", 0
        self._parts: dict[bytes, Buffer] = {}

    def put(self, content: bytes, manifest: Manifest) -> None:
        told = manifest.to_bytes()
        self.number, self.named = manifest.number, (manifest.sha, len(told))
        self._parts = {**dict(zip(manifest.chunks, cut(content), strict=True)), self.named[0]: told}

    def clear(self) -> None:
        """A transfer under way still ends."""
        self.number, self._parts = -1, {}

    def get(self, sha: bytes) -> Buffer | None:
        if sha in self._parts:
            self._asked()
        return self._parts.get(sha)


def protocol_of(run: str) -> str:
    """Where a joiner asks for a manifest."""
    return f"outerloop/1/{run}/snapshot"


def content_of(run: str) -> str:
    """The run whose bulk transfers are manifests and chunks."""
    return f"{run}/state"
