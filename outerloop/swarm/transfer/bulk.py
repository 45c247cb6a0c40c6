"""Bulk transfer: download content by its sha256 from any peer that holds it, and resume after a broken stream.

One stream per transfer:  {sha, offset} ->   <- {wait: true} while it is queued   <- {length}, or {}: content not held
                          <- content[offset:], in pieces of 256 KiB   <- end mark (4 bytes)

If a stream ends early or stalls, its bytes are kept: the next stream, to the same source or another, requests the
remaining bytes. The complete content is checked against its hash. assembler.py finds the sources of wrong bytes;
sources.py ranks sources that have wasted time last.

The downloader closes a stream when a piece takes longer than STALL_S. It also closes a stream when the source's turn is
over and either another download waits for a slot (download_slots.py) or another source may have the content. So a peer
cannot block other downloads by sending slowly or by announcing content that does not exist. If no other download and no
other source is waiting, the total time of a transfer is not limited.

Likewise, the uploader ends a stream after a piece when the downloader's turn is over and another peer waits for a slot
(upload_slots.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from outerloop.swarm.p2p.framing import PIECE_BYTES, BrokenStream, Stream
from outerloop.swarm.p2p.transport import Request, RpcService, Transport, Unreachable
from outerloop.swarm.timeouts import limit
from outerloop.swarm.transfer.assembler import ContentAssembler
from outerloop.swarm.transfer.content_store import FixedBuffer, GrowingBuffer
from outerloop.swarm.transfer.download_slots import BusyTimer, DownloadSlots
from outerloop.swarm.transfer.sources import ContentUnavailable, SourceReputation, Sources
from outerloop.swarm.transfer.uploads import ContentSource, RateLimiter, Uploads

logger = logging.getLogger(__name__)


class SlotTurnOver(Exception):
    """The source has used up its turn while another source or download is waiting."""


def _ignore(arrived: int, length: int) -> None:
    pass


@dataclass
class _Get:
    """The state of one download.

    `began_s`: time when the current stream was opened. `heard_s`: time when the last bytes arrived. `silence`: timeout
    that ends the download if no complete piece arrives for `silent_s` seconds.
    """

    partial: ContentAssembler
    sources: Sources
    progress: Callable[[int, int], None]
    silent_s: float
    silence: asyncio.Timeout
    began_s: float = 0.0
    heard_s: float = 0.0


class Bulk(RpcService):
    """Client and server of bulk transfers: downloads from other peers, and uploads from `store`.

    At most TRANSFERS_AT_ONCE downloads and as many uploads run concurrently. The requesting peers share the uploads.

    limiter          rate limit for all uploads together, which other parts of the peer may share; None for no limit.
                     A downloader gives up on a piece after STALL_S. So below 140 kB/s, fewer uploads run at once, and
                     each piece still arrives within half of STALL_S
    max_per_source   maximum number of concurrent downloads from one source

    `bytes_sent` and `bytes_received` count content bytes, including repeated transfers. `reputation` records peers that
    sent wrong bytes or wasted time.
    """

    service = "bulk"

    def __init__(
        self,
        transport: Transport,
        store: ContentSource,
        *,
        run: str,
        allowed: Callable[[str], bool],
        limiter: RateLimiter | None = None,
        max_per_source: int = 1,
    ) -> None:
        super().__init__(transport, run=run, allowed=allowed)
        self._busy = BusyTimer()
        self.uploads = Uploads(store, limiter or RateLimiter(None), self._busy)
        self.reputation = SourceReputation()
        self.slots = DownloadSlots(self.reputation, max_per_source=max_per_source)
        self.bytes_received = 0

    @property
    def bytes_sent(self) -> int:
        """The number of content bytes uploaded so far."""
        return self.uploads.bytes_sent

    @property
    def moving_s(self) -> float:
        """The total time in seconds during which at least one transfer was running. Any thread may read it."""
        return self._busy.total_s()

    async def get(
        self,
        sha: bytes,
        length: int,
        sources: Sequence[str],
        *,
        at_most: int,
        timeout_s: float,
        progress: Callable[[int, int], None] = _ignore,
    ) -> bytes:
        """Download content by its sha256 and length in bytes, trying `sources` (peer ids) in turn, and return it.

        The caller may append to `sources` during the download. `sha` and `length` may come from an untrusted peer.
        `progress` is called after every read with the number of bytes received so far and the length. Raises
        ContentUnavailable if `length` exceeds `at_most`, if no peer has the content, or if no piece arrives for
        `timeout_s`, not counting the time spent waiting for a slot.
        """
        buffer = GrowingBuffer()
        get = self._begin(ContentAssembler(sha, length, buffer), sources, progress, timeout_s)
        if not 0 <= length <= at_most:
            raise ContentUnavailable(f"{get.partial}: its length must be 0 to {at_most} bytes")
        await self._finish(get)
        return buffer.getvalue()

    async def fill(
        self,
        place: memoryview,
        sha: bytes,
        sources: Sequence[str],
        *,
        timeout_s: float,
        progress: Callable[[int, int], None] = _ignore,
    ) -> None:
        """Download content like `get`, but write it to `place`, which has the content's length.

        Raises ContentUnavailable if no peer has the content, or if no piece arrives for `timeout_s`.
        """
        await self._finish(
            self._begin(ContentAssembler(sha, len(place), FixedBuffer(place)), sources, progress, timeout_s)
        )

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        await self.uploads.answer(remote, request, stream)

    def _begin(
        self, partial: ContentAssembler, sources: Sequence[str], progress: Callable[[int, int], None], silent_s: float
    ) -> _Get:
        return _Get(partial, Sources(sources, self.reputation, partial.sha), progress, silent_s, limit(silent_s))

    async def _finish(self, get: _Get) -> None:
        """Ask sources until the content is complete and matches its hash. Empty content needs no source."""
        if not get.partial.length:
            if not get.partial.matches_hash():
                raise ContentUnavailable(f"{get.partial}: its sha256 must be that of empty content")
            return
        try:
            async with get.silence:
                while not await self._ask_one(get):
                    await get.sources.pause()
        except TimeoutError as error:
            raise ContentUnavailable(
                f"{get.partial}, no further bytes within {get.silent_s:g} s: {get.sources}"
            ) from error
        for source in get.partial.bad_sources():
            self.reputation.blame(source, get.partial.sha)

    async def _ask_one(self, get: _Get) -> bool:
        """Ask one source for the missing bytes. Return whether the content is complete and matches its hash."""
        async with self._slot(get) as source:
            await self._open(get, source)
        if not get.partial.complete():
            return False
        if get.partial.matches_hash():
            get.sources.delivered(source)
            return True
        if bad_source := get.partial.reject():
            self.reputation.blame(bad_source, get.partial.sha)
            get.sources.leave_out(bad_source, "sent wrong bytes")
        else:
            logger.warning(
                "bytes of %s from several sources are wrong: retrying from one source", get.partial.sha.hex()[:16]
            )
        return False

    @asynccontextmanager
    async def _slot(self, get: _Get) -> AsyncIterator[str]:
        """Wait for a slot, and yield the source to ask. The wait does not count towards the silence timeout."""
        ends_s, began_s = get.silence.when(), _now_s()
        assert ends_s is not None
        get.silence.reschedule(None)
        async with self.slots.acquire(get.sources) as source:
            get.silence.reschedule(ends_s + _now_s() - began_s)
            yield source

    async def _open(self, get: _Get, source: str) -> None:
        """Run one stream to `source`. If it breaks, the bytes received are kept."""
        get.partial.attribute_to(source)
        before = len(get.partial)
        get.began_s = get.heard_s = _now_s()
        try:
            with self._busy.during():
                await self._fetch(get, source)
        except SlotTurnOver:
            get.sources.turn_over(source, received_bytes=len(get.partial) - before, after_s=_now_s() - get.began_s)
        except (BrokenStream, Unreachable) as error:
            get.sources.failed(source, error, received_bytes=len(get.partial) - before, silent_s=_now_s() - get.heard_s)
            logger.debug("%s: %s failed (%s); the download will resume from this point", get.partial, source, error)

    async def _fetch(self, get: _Get, source: str) -> None:
        async with self._stream_to(source) as stream:
            await stream.send_object({"sha": get.partial.sha, "offset": len(get.partial)})
            while (answer := await stream.receive_object()).get("wait"):
                self._look_at_turn(get, source)
            if (length := answer.get("length")) == get.partial.length:
                await self._receive(get, source, stream)
            else:
                get.sources.leave_out(source, "does not have it" if length is None else "has it with another length")

    async def _receive(self, get: _Get, source: str, stream: Stream) -> None:
        """Receive the missing bytes from a stream."""
        since_piece = 0
        async for some in stream.pieces(get.partial.length - len(get.partial)):
            get.heard_s = _now_s()
            self.bytes_received += len(some)
            await get.partial.add(some)
            get.progress(len(get.partial), get.partial.length)
            since_piece += len(some)
            if since_piece >= PIECE_BYTES:
                since_piece = 0
                get.silence.reschedule(get.heard_s + get.silent_s)
            if not get.partial.complete():
                self._look_at_turn(get, source)

    def _look_at_turn(self, get: _Get, source: str) -> None:
        """Raise SlotTurnOver if the source's turn is over and another source or download is waiting."""
        over = _now_s() - get.began_s >= get.sources.turn_s(source)
        if over and (self.slots.wanted or get.sources.alternatives()):
            raise SlotTurnOver


def _now_s() -> float:
    return asyncio.get_running_loop().time()
