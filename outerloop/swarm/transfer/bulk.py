"""Bulk transfer: content named by its sha256, from whoever holds it, continued where a broken stream left it.

A transfer, one stream:   {sha, offset} ->   <- {wait: true} while it has to queue   <- {length}, or {}: not held here
                          <- content[offset:], in pieces of 256 KiB   <- end mark (4 bytes)

A stream that ends or stalls early has still brought what it has brought: the next one, to the same holder or another,
asks for the rest. What is right is decided by the hash alone, at the end; who gave wrong bytes is found by it
(assembler.py), who wastes time is asked last (sources.py).

The asker closes a stream when a piece takes longer than STALL_S; and when its holder's turn is over, if another content
waits for the slot (download_slots.py) or another holder may have this one. So nobody keeps the contents of others away
by giving slowly, or by naming contents that do not exist. A transfer that nothing waits for may take as long as it
needs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from outerloop.swarm.p2p.framing import PIECE_BYTES, BrokenStream, Stream
from outerloop.swarm.p2p.transport import Transport, Unreachable
from outerloop.swarm.timeouts import limit
from outerloop.swarm.transfer.assembler import ContentAssembler
from outerloop.swarm.transfer.busy_timer import BusyTimer
from outerloop.swarm.transfer.download_slots import DownloadSlots
from outerloop.swarm.transfer.rate_limiter import RateLimiter
from outerloop.swarm.transfer.receive_buffer import FixedBuffer, GrowingBuffer
from outerloop.swarm.transfer.sources import ContentUnavailable, SourceReputation, Sources
from outerloop.swarm.transfer.uploads import ContentSource, Uploads

logger = logging.getLogger(__name__)


class SlotTurnOver(Exception):
    """A holder has given for as long as it may while others wait."""


def _ignore(arrived: int, length: int) -> None:
    pass


@dataclass
class _Get:
    """One content on its way here. `began_s`: the stream at hand. `heard_s`: when the last bytes came.

    `silence` ends it when no whole piece has come for `silent_s`.
    """

    partial: ContentAssembler
    holders: Sources
    progress: Callable[[int, int], None]
    silent_s: float
    silence: asyncio.Timeout
    began_s: float = 0.0
    heard_s: float = 0.0


class Bulk:
    """Gets content from others and gives what the store holds, at most 8 transfers each way at once.

    pace     what all gifts together may take, shared with whoever else is given it; none: no limit. Under 140 kB/s they
             go out fewer at once, so that a piece still arrives in half the time after which others give up
    of_one   transfers from one holder at once

    `bytes_sent` and `bytes_received` count content, every copy; `reputation` tells who gave wrong bytes.
    """

    def __init__(
        self,
        transport: Transport,
        store: ContentSource,
        *,
        run: str,
        allowed: Callable[[str], bool],
        pace: RateLimiter | None = None,
        of_one: int = 1,
    ) -> None:
        self._transport = transport
        self._protocol = f"outerloop/1/{run}/bulk"
        self._allowed = allowed
        self._busy = BusyTimer()
        self.gifts = Uploads(store, pace or RateLimiter(None), self._busy)
        self.reputation = SourceReputation()
        self.slots = DownloadSlots(self.reputation, of_one=of_one)
        self.bytes_received = 0

    @property
    def bytes_sent(self) -> int:
        """Bytes of content given so far."""
        return self.gifts.bytes_sent

    @property
    def moving_s(self) -> float:
        """Seconds so far in which at least one transfer was under way; any thread may ask."""
        return self._busy.total_s()

    async def serve(self) -> None:
        """Give to allowed peers, from now on."""
        await self._transport.serve(self._protocol, allowed=self._allowed, handler=self.gifts.give)

    async def get(
        self,
        sha: bytes,
        length: int,
        holders: Sequence[str],
        *,
        at_most: int,
        timeout_s: float,
        progress: Callable[[int, int], None] = _ignore,
    ) -> bytes:
        """The content with this sha256 and length (bytes) from any of `holders` (peer ids), tried in turn.

        More may be appended to `holders` meanwhile. `sha` and `length` may be what a peer told. `progress` is told the
        bytes that are here and the length, at every step. Raises ContentUnavailable: more than `at_most` bytes, nobody
        has it, or none of its pieces came for `timeout_s`, waiting for other transfers to end left out.
        """
        room = GrowingBuffer()
        get = self._begin(ContentAssembler(sha, length, room), holders, progress, timeout_s)
        if not 0 <= length <= at_most:
            raise ContentUnavailable(f"{get.partial}: 0 to {at_most} bytes are allowed")
        await self._finish(get)
        return room.getvalue()

    async def fill(self, place: memoryview, sha: bytes, holders: Sequence[str], *, timeout_s: float) -> None:
        """As `get`, of a content of the place's length, which comes to lie there. Raises ContentUnavailable."""
        await self._finish(
            self._begin(ContentAssembler(sha, len(place), FixedBuffer(place)), holders, _ignore, timeout_s)
        )

    def _begin(
        self, partial: ContentAssembler, holders: Sequence[str], progress: Callable[[int, int], None], silent_s: float
    ) -> _Get:
        return _Get(partial, Sources(holders, self.reputation, partial.sha), progress, silent_s, limit(silent_s))

    async def _finish(self, get: _Get) -> None:
        """Until all is here and right."""
        try:
            async with get.silence:
                while not await self._ask_one(get):
                    await get.holders.pause()
        except TimeoutError as error:
            raise ContentUnavailable(f"{get.partial}, no more after {get.silent_s:g} s: {get.holders}") from error
        for holder in get.partial.liars():
            self.reputation.blame(holder, get.partial.sha)

    async def _ask_one(self, get: _Get) -> bool:
        """Ask one holder for what is missing; whether all is here and right."""
        async with self._slot(get) as holder:
            await self._open(get, holder)
        if not get.partial.complete():
            return False
        if get.partial.right():
            get.holders.gave_all(holder)
            return True
        if liar := get.partial.reject():
            self.reputation.blame(liar, get.partial.sha)
            get.holders.leave_out(liar, "gave wrong bytes")
        else:
            logger.warning("%s from several holders is wrong: now from one at a time", get.partial.sha.hex()[:16])
        return False

    @asynccontextmanager
    async def _slot(self, get: _Get) -> AsyncIterator[str]:
        """Have a slot, and the holder to ask in it; the wait for it is not the holders' silence."""
        ends_s, began_s = get.silence.when(), _now_s()
        assert ends_s is not None
        get.silence.reschedule(None)
        async with self.slots.one(get.holders) as holder:
            get.silence.reschedule(ends_s + _now_s() - began_s)
            yield holder

    async def _open(self, get: _Get, holder: str) -> None:
        """One stream. If it breaks, what it brought stays."""
        get.partial.turn_to(holder)
        before = len(get.partial)
        get.began_s = get.heard_s = _now_s()
        try:
            with self._busy.during():
                await self._fetch(get, holder)
        except SlotTurnOver:
            get.holders.turn_over(holder, brought=len(get.partial) - before, after_s=_now_s() - get.began_s)
        except (BrokenStream, Unreachable) as error:
            get.holders.failed(holder, error, brought=len(get.partial) - before, silent_s=_now_s() - get.heard_s)
            logger.debug("%s: %s failed (%s), going on from there", get.partial, holder, error)

    async def _fetch(self, get: _Get, holder: str) -> None:
        async with self._transport.open_stream(holder, self._protocol) as stream:
            await stream.send_object({"sha": get.partial.sha, "offset": len(get.partial)})
            while (answer := await stream.receive_object()).get("wait"):
                self._look_at_turn(get, holder)
            if (length := answer.get("length")) == get.partial.length:
                await self._receive(get, holder, stream)
            else:
                get.holders.leave_out(holder, "does not have it" if length is None else "has it with another length")

    async def _receive(self, get: _Get, holder: str, stream: Stream) -> None:
        """What is missing, as it comes."""
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
                self._look_at_turn(get, holder)

    def _look_at_turn(self, get: _Get, holder: str) -> None:
        """Raise SlotTurnOver when a holder has had its turn, and another one or another content waits."""
        over = _now_s() - get.began_s >= get.holders.turn_s(holder)
        if over and (self.slots.wanted or get.holders.alternatives()):
            raise SlotTurnOver


def _now_s() -> float:
    return asyncio.get_running_loop().time()
