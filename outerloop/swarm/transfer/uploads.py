"""Serve content to other peers: a limited number of uploads at once, within the user's rate limit.

The peers that request uploads share the slots (upload_slots.py). A queued peer gets a message every BUSY_S, because it
would otherwise assume that this peer is frozen. bulk.py describes the protocol. All uploads share the rate limit, in
bytes per second, which is measured by the event loop's clock.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from outerloop.swarm.p2p.framing import END_MARK, PIECE_BYTES, BrokenStream, Stream, Unreadable
from outerloop.swarm.p2p.transport import Request
from outerloop.swarm.storage import Buffer
from outerloop.swarm.timeouts import BUSY_S, STALL_S
from outerloop.swarm.transfer.download_slots import TRANSFERS_AT_ONCE, BusyTimer
from outerloop.swarm.transfer.upload_slots import UploadSlots
from outerloop.types import UserError

MIN_BYTES_PER_S = 2 * PIECE_BYTES / STALL_S
"""The rate at which a piece takes half of STALL_S. Other peers give up if a piece takes longer than STALL_S."""


class RateLimiter:
    """A rate limiter. `take` waits until the bytes of all earlier calls would have been sent at the limit.

    `bytes_per_s`: the limit, or None for no limit. Idle time earns no credit: t seconds after the first call, at most
    `bytes_per_s` * t bytes plus the bytes of one call have been sent. `within`: a second limiter, whose limit applies
    to the same bytes, or None.
    """

    def __init__(self, bytes_per_s: float | None, *, within: RateLimiter | None = None) -> None:
        self.bytes_per_s = bytes_per_s
        self._within = within
        self._free_at_s = 0.0

    def part(self, share: float) -> RateLimiter:
        """Return a limiter for a share of this rate, but at least MIN_BYTES_PER_S.

        Bytes sent within the returned limiter also count towards this limiter.
        """
        if self.bytes_per_s is None:
            return self
        return RateLimiter(max(share * self.bytes_per_s, MIN_BYTES_PER_S), within=self)

    async def take(self, count: int) -> None:
        """Wait until `count` bytes may be sent."""
        if self.bytes_per_s is None:
            return
        now_s = asyncio.get_running_loop().time()
        turn_s = max(now_s, self._free_at_s)
        self._free_at_s = turn_s + count / self.bytes_per_s
        await asyncio.sleep(turn_s - now_s)
        if self._within is not None:
            await self._within.take(count)


def limiter_for(max_mbit: float | None) -> RateLimiter:
    """Return a limiter for the user's limit in Mbit/s (None: no limit). Raises UserError if the limit is too low."""
    if max_mbit is None:
        return RateLimiter(None)
    number = isinstance(max_mbit, int | float) and math.isfinite(max_mbit)
    if not number or max_mbit * 1e6 / 8 < MIN_BYTES_PER_S:
        least = f"{MIN_BYTES_PER_S * 8e-6:.2f}"
        raise UserError(
            f"exchange.max_mbit={max_mbit} is too low an upload limit: other peers would consider this peer frozen;"
            f" set exchange.max_mbit={least} or more, or null for no limit"
        )
    return RateLimiter(max_mbit * 1e6 / 8)


SHA_BYTES = 32


class ContentSource(Protocol):
    """The store that uploads read from."""

    def get(self, sha: bytes) -> Buffer | None:
        """Return the content with this sha256, or None if this source does not hold it."""
        ...


class Uploads:
    """Serves requests for content. `busy`: measures when uploads run. `bytes_sent`: number of content bytes sent."""

    def __init__(self, source: ContentSource, limiter: RateLimiter, busy: BusyTimer) -> None:
        self.source = source
        self.bytes_sent = 0
        self.slots = UploadSlots(_uploads_at_once(limiter))
        self._limiter = limiter
        self._busy = busy

    async def answer(self, remote: str, request: Request, stream: Stream) -> None:
        """Answer one request for content.

        The content is looked up again after the wait, so that a waiting request keeps no dropped content in memory.
        """
        sha, offset = _wanted(request)
        if self._find(sha, offset) is not None:
            async with self._turn(remote, stream) as over:
                if (content := self._find(sha, offset)) is not None:
                    with self._busy.during():
                        await self._upload(memoryview(content)[offset:], stream, length=len(content), over=over)
                    await stream.ended()  # this wait is not measured: a requester can leave its stream open
                    return
        await stream.send_object({})
        await stream.ended()

    def _find(self, sha: bytes, offset: int) -> Buffer | None:
        content = self.source.get(sha)
        return None if content is None or offset > len(content) else content

    async def _upload(self, content: memoryview, stream: Stream, *, length: int, over: Callable[[], bool]) -> None:
        """Send `content`, the rest of a content of `length` bytes. Raises BrokenStream once the turn is `over`."""
        await stream.send_object({"length": length})
        for start in range(0, len(content), PIECE_BYTES):
            if start and over():
                raise BrokenStream("the turn of this upload is over, and another peer is waiting")
            await self._send(content[start : start + PIECE_BYTES], stream)
        await stream.write(END_MARK)

    async def _send(self, piece: memoryview, stream: Stream) -> None:
        await self._limiter.take(len(piece))
        # counted before the piece can arrive, so that both peers' counts agree once a round has landed
        self.bytes_sent += len(piece)
        await stream.write(piece)

    @asynccontextmanager
    async def _turn(self, remote: str, stream: Stream) -> AsyncIterator[Callable[[], bool]]:
        """Hold an upload slot, and yield a function that returns whether the upload has to end.

        While waiting for the slot, send keep-alives to the requester.
        """
        slot = self.slots.request(remote)
        try:
            while not (await asyncio.wait([slot], timeout=BUSY_S))[0]:
                await stream.send_object({"wait": True})
            yield lambda: self.slots.turn_over(remote, slot)
        finally:
            self.slots.release(remote, slot)


def _wanted(request: Request) -> tuple[bytes, int]:
    sha, offset = request.get("sha"), request.get("offset")
    if not isinstance(sha, bytes) or len(sha) != SHA_BYTES or not isinstance(offset, int) or offset < 0:
        raise Unreadable("the request does not contain a valid sha256 and offset")
    return sha, offset


def _uploads_at_once(limiter: RateLimiter) -> int:
    """Return how many uploads can run at once if each must send a piece within half of STALL_S; at least 1."""
    if limiter.bytes_per_s is None:
        return TRANSFERS_AT_ONCE
    return max(1, min(TRANSFERS_AT_ONCE, int(limiter.bytes_per_s / MIN_BYTES_PER_S)))
