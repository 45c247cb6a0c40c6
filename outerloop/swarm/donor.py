"""State for those who come late: every donor copies its own at the same landing, and goes on training.

    {number} ->   <- {manifest: [sha256, bytes, signature]} once this peer has landed that commit and copied its state,
                  <- {} when it is past it, or has not come to it for so long that it is to be asked again

A joiner names a commit that is about to be. Donors whose states are equal have equal manifests (manifest.py), and the
chunks go out by their hashes (bulk.py).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable

from outerloop.swarm.bulk import Bulk
from outerloop.swarm.disk import Buffer
from outerloop.swarm.framing import Stream, Unreadable
from outerloop.swarm.manifest import CONTEXT, Manifest, cut
from outerloop.swarm.pace import Pace
from outerloop.swarm.timeouts import POLL_S, STATE_KEPT_S, limit
from outerloop.swarm.transport import Request, Transport

MOST_WANTED = 8
"""Commits whose state may be wanted at a time: each costs a copy of all weights, one after the other."""


class Donor:
    """`wants` may be asked by the trainer's thread, all else belongs to the network's."""

    def __init__(
        self, transport: Transport, *, run: str, allowed: Callable[[str], bool], pace: Pace | None = None
    ) -> None:
        self._transport = transport
        self._allowed = allowed
        self._protocol = protocol_of(run)
        self._run = run
        self._held = _Held(asked=self._hold_on)
        self.bulk = Bulk(transport, self._held, run=content_of(run), allowed=allowed, pace=pace)
        self._wanted: frozenset[int] = frozenset()
        self._landed = -1
        self._news = asyncio.Event()
        self._drop: asyncio.TimerHandle | None = None

    async def serve(self) -> None:
        await self.bulk.serve()
        await self._transport.serve(self._protocol, allowed=self._allowed, handler=self._tell)

    def wants(self, number: int) -> bool:
        """Whether somebody asked for the state as of this commit."""
        return number in self._wanted

    def landed(self, number: int, *, copied: bool) -> None:
        """This peer is past a commit. Not `copied`: whoever asks for it too late is told so."""
        self._landed = number
        self._wanted = frozenset(one for one in self._wanted if one > number or (copied and one == number))
        self._tell_waiting()

    def hold(self, content: bytes, manifest: Manifest) -> None:
        """Give this state, until nobody has asked for it for a while."""
        self._held.put(content, manifest)
        self._wanted -= {manifest.number}
        self._hold_on()
        self._tell_waiting()

    def release(self, number: int) -> None:
        """Give the state as of this commit no longer, if that is the one that is held."""
        if self._held.number == number:
            self._held.clear()

    async def _tell(self, remote: str, request: Request, stream: Stream) -> None:
        number = request.get("number")
        if not isinstance(number, int):
            raise Unreadable("a request without the number of a commit")
        if number > self._landed and number != self._held.number and len(self._wanted) < MOST_WANTED:
            self._wanted |= {number}
        try:
            async with limit(POLL_S):
                while number in self._wanted:
                    await self._news.wait()
        except TimeoutError:
            pass
        held = self._held.number == number
        if held:
            self._hold_on()
        await stream.send_object({"manifest": [*self._held.named, self._signature(number)]} if held else {})
        await stream.ended()

    def _signature(self, number: int) -> bytes:
        """Of what is named, as the state as of this commit."""
        return self._transport.trust.signatures.sign(CONTEXT, self._run, number, *self._held.named)

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
        self.number, self.named = manifest.number, (hashlib.sha256(told).digest(), len(told))
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
