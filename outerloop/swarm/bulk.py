"""Bulk transfer: content named by its sha256, from whoever holds it, continued where a broken stream left it.

A transfer, one stream:   {sha, offset} ->   <- {wait: true} while it has to queue   <- {length}, or {}: not held here
                          <- content[offset:], in pieces of 256 KiB   <- end mark (4 bytes)

A stream that ends or stalls early has still brought what it has brought: the next one, to the same holder or another,
asks for the rest. What is right is decided by the hash alone, at the end; who gave wrong bytes is found by it
(partial.py), who wastes time is asked last (holders.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from outerloop.swarm.busy import Busy
from outerloop.swarm.disk import Buffer
from outerloop.swarm.framing import END_MARK, PIECE_BYTES, BrokenStream, Stream, Unreadable
from outerloop.swarm.holders import Holders, Reputation, Unobtainable
from outerloop.swarm.pace import LEAST_BYTES_PER_S, Pace
from outerloop.swarm.partial import Partial
from outerloop.swarm.room import Growing, Place
from outerloop.swarm.timeouts import BUSY_S, STALL_S, limit
from outerloop.swarm.transport import Request, Transport, Unreachable

logger = logging.getLogger(__name__)
TRANSFERS_AT_ONCE = 8
SHA_BYTES = 32


class Source(Protocol):
    """What is given."""

    def get(self, sha: bytes) -> Buffer | None:
        """The content with this sha256, if it is held."""
        ...


def _ignore(arrived: int, length: int) -> None:
    pass


@dataclass
class _Get:
    """One content on its way here. `heard_s`: when the last of it came."""

    partial: Partial
    holders: Holders
    progress: Callable[[int, int], None]
    heard_s: float = 0.0


class Bulk:
    """Gets content from others and gives what the store holds, at most 8 transfers each way at once.

    pace   what all gifts together may take, shared with whoever else is given it; none: no limit. Under 140 kB/s they
           go out fewer at once, so that a piece still arrives in half the time after which others give up

    `bytes_sent` and `bytes_received` count content, every copy; `reputation` tells who gave wrong bytes.
    """

    def __init__(
        self,
        transport: Transport,
        store: Source,
        *,
        run: str,
        allowed: Callable[[str], bool],
        pace: Pace | None = None,
    ) -> None:
        self._transport = transport
        self._store = store
        self._protocol = f"outerloop/1/{run}/bulk"
        self._allowed = allowed
        self._pace = pace or Pace(None)
        self._gets = asyncio.Semaphore(TRANSFERS_AT_ONCE)
        self._gifts = asyncio.Semaphore(_gifts_at_once(self._pace))
        self.reputation = Reputation()
        self.bytes_sent = 0
        self.bytes_received = 0
        self._busy = Busy()

    @property
    def moving_s(self) -> float:
        """Seconds so far in which at least one transfer was under way; any thread may ask."""
        return self._busy.total_s()

    async def serve(self) -> None:
        """Give to allowed peers, from now on."""
        await self._transport.serve(self._protocol, allowed=self._allowed, handler=self._give)

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
        bytes that are here and the length, at every step. Raises Unobtainable: more than `at_most` bytes, nobody has
        it, or not here after `timeout_s`.
        """
        room = Growing()
        get = _Get(Partial(sha, length, room), Holders(holders, self.reputation, sha), progress)
        if not 0 <= length <= at_most:
            raise Unobtainable(f"{get.partial}: 0 to {at_most} bytes are allowed")
        await self._finish(get, timeout_s)
        return room.getvalue()

    async def fill(self, place: memoryview, sha: bytes, holders: Sequence[str], *, timeout_s: float) -> None:
        """As `get`, of a content of the place's length, which comes to lie there. Raises Unobtainable."""
        partial = Partial(sha, len(place), Place(place))
        await self._finish(_Get(partial, Holders(holders, self.reputation, sha), _ignore), timeout_s)

    async def _finish(self, get: _Get, timeout_s: float) -> None:
        """Until all is here and right."""
        try:
            async with limit(timeout_s):
                while not await self._ask_one(get):
                    await get.holders.pause()
        except TimeoutError as error:
            raise Unobtainable(f"{get.partial} after {timeout_s:g} s: {get.holders}") from error
        for holder in get.partial.liars():
            self.reputation.blame(holder, get.partial.sha)

    async def _ask_one(self, get: _Get) -> bool:
        """Ask one holder for what is missing; whether all is here and right."""
        async with self._gets:
            holder = get.holders.next()
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

    async def _open(self, get: _Get, holder: str) -> None:
        """One stream. If it breaks, what it brought stays."""
        get.partial.turn_to(holder)
        before, clock = len(get.partial), asyncio.get_running_loop().time
        get.heard_s = clock()
        try:
            with self._busy.during():
                await self._fetch(get, holder)
        except (BrokenStream, Unreachable) as error:
            get.holders.failed(holder, error, brought=len(get.partial) - before, silent_s=clock() - get.heard_s)
            logger.debug("%s: %s failed (%s), going on from there", get.partial, holder, error)

    async def _fetch(self, get: _Get, holder: str) -> None:
        async with self._transport.open_stream(holder, self._protocol) as stream:
            await stream.send_object({"sha": get.partial.sha, "offset": len(get.partial)})
            length = await _answer(stream, patience_s=STALL_S if get.holders.alternatives() else None)
            if length != get.partial.length:
                get.holders.leave_out(holder, "does not have it" if length is None else "has it with another length")
                return
            async for piece in stream.pieces(get.partial.length - len(get.partial)):
                get.heard_s = asyncio.get_running_loop().time()
                self.bytes_received += len(piece)
                await get.partial.add(piece)
                get.progress(len(get.partial), get.partial.length)

    async def _give(self, remote: str, request: Request, stream: Stream) -> None:
        sha, offset = _wanted(request)
        content = self._store.get(sha)
        if content is None or offset > len(content):
            await stream.send_object({})
            await stream.ended()
            return
        async with self._turn(stream):
            with self._busy.during():
                await self._give_now(memoryview(content)[offset:], stream, length=len(content))

    async def _give_now(self, content: memoryview, stream: Stream, *, length: int) -> None:
        await stream.send_object({"length": length})
        await self._send(content, stream)
        await stream.ended()

    async def _send(self, content: memoryview, stream: Stream) -> None:
        for start in range(0, len(content), PIECE_BYTES):
            piece = content[start : start + PIECE_BYTES]
            await self._pace.take(len(piece))
            await stream.write(piece)
            self.bytes_sent += len(piece)
        await stream.write(END_MARK)

    @asynccontextmanager
    async def _turn(self, stream: Stream) -> AsyncIterator[None]:
        """One of the gifts at once. Who has to queue is told so: silence would mean that this peer is frozen."""
        turn = asyncio.create_task(self._gifts.acquire())
        try:
            while not (await asyncio.wait([turn], timeout=BUSY_S))[0]:
                await stream.send_object({"wait": True})
            yield
        finally:
            if not turn.cancel():
                self._gifts.release()


async def _answer(stream: Stream, *, patience_s: float | None) -> object:
    """The length that a holder announces, or whatever it says instead, once it is this peer's turn."""
    try:
        async with limit(patience_s):
            while (answer := await stream.receive_object()).get("wait"):
                pass
    except TimeoutError as error:
        raise BrokenStream(f"did not begin within {patience_s:g} s, and others may") from error
    return answer.get("length")


def _wanted(request: Request) -> tuple[bytes, int]:
    sha, offset = request.get("sha"), request.get("offset")
    if not isinstance(sha, bytes) or len(sha) != SHA_BYTES or not isinstance(offset, int) or offset < 0:
        raise Unreadable("a request without a sha256 and an offset")
    return sha, offset


def _gifts_at_once(pace: Pace) -> int:
    """As many as get a piece each through in half of a stall, one at least."""
    if pace.bytes_per_s is None:
        return TRANSFERS_AT_ONCE
    return max(1, min(TRANSFERS_AT_ONCE, int(pace.bytes_per_s / LEAST_BYTES_PER_S)))
