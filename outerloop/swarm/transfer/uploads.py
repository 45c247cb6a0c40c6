"""Serve contents to other peers: a limited number of uploads at once, within the user's rate limit.

A queued peer gets a message every BUSY_S, since silence would mean that this peer is frozen. Protocol: see bulk.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from outerloop.swarm.p2p.framing import END_MARK, PIECE_BYTES, Stream, Unreadable
from outerloop.swarm.p2p.transport import Request
from outerloop.swarm.storage import Buffer
from outerloop.swarm.timeouts import BUSY_S
from outerloop.swarm.transfer.busy_timer import BusyTimer
from outerloop.swarm.transfer.download_slots import TRANSFERS_AT_ONCE
from outerloop.swarm.transfer.rate_limiter import MIN_BYTES_PER_S, RateLimiter

SHA_BYTES = 32


class ContentSource(Protocol):
    """The store that uploads read from."""

    def get(self, sha: bytes) -> Buffer | None:
        """Return the content with this sha256, or None if it is not held."""
        ...


class Uploads:
    """A server for content requests. `busy` times running uploads; `bytes_sent` counts the bytes of every copy."""

    def __init__(self, source: ContentSource, limiter: RateLimiter, busy: BusyTimer) -> None:
        self.source = source
        self.bytes_sent = 0
        self.turns = asyncio.Semaphore(_uploads_at_once(limiter))
        self._limiter = limiter
        self._busy = busy

    async def answer(self, remote: str, request: Request, stream: Stream) -> None:
        """Answer one request."""
        sha, offset = _wanted(request)
        content = self.source.get(sha)
        if content is None or offset > len(content):
            await stream.send_object({})
            await stream.ended()
            return
        async with self._turn(stream):
            with self._busy.during():
                await self._upload(memoryview(content)[offset:], stream, length=len(content))

    async def _upload(self, content: memoryview, stream: Stream, *, length: int) -> None:
        await stream.send_object({"length": length})
        await self._send(content, stream)
        await stream.ended()

    async def _send(self, content: memoryview, stream: Stream) -> None:
        for start in range(0, len(content), PIECE_BYTES):
            piece = content[start : start + PIECE_BYTES]
            await self._limiter.take(len(piece))
            self.bytes_sent += len(piece)  # before it can arrive: both counts agree once a round has landed
            await stream.write(piece)
        await stream.write(END_MARK)

    @asynccontextmanager
    async def _turn(self, stream: Stream) -> AsyncIterator[None]:
        """Wait for an upload slot, and keep the queued requester informed."""
        turn = asyncio.create_task(self.turns.acquire())
        try:
            while not (await asyncio.wait([turn], timeout=BUSY_S))[0]:
                await stream.send_object({"wait": True})
            yield
        finally:
            if not turn.cancel():
                self.turns.release()


def _wanted(request: Request) -> tuple[bytes, int]:
    sha, offset = request.get("sha"), request.get("offset")
    if not isinstance(sha, bytes) or len(sha) != SHA_BYTES or not isinstance(offset, int) or offset < 0:
        raise Unreadable("the request lacks a valid sha256 or offset")
    return sha, offset


def _uploads_at_once(limiter: RateLimiter) -> int:
    """Return how many uploads can run at once so that each still sends a piece in half of STALL_S; at least 1."""
    if limiter.bytes_per_s is None:
        return TRANSFERS_AT_ONCE
    return max(1, min(TRANSFERS_AT_ONCE, int(limiter.bytes_per_s / MIN_BYTES_PER_S)))
