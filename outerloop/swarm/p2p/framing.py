"""Message framing on a byte stream. It detects streams that ended before the message was complete.

    length (8 bytes, big endian) | sha256 of the content (32 bytes) | content, in pieces of 256 KiB | end mark (4 bytes)

libp2p ends a stream in the same way whether the sender finished or was killed. The length, the end mark and the hash
reveal the difference. The reader sets a size limit, and checks the announced length *before* it allocates memory. A
frozen sender keeps its connection open indefinitely, so every piece has a time limit. Small control messages are
msgpack maps in one frame.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from typing import Any

import msgpack

from outerloop.swarm.access.access_control import EXCLUSIONS
from outerloop.swarm.timeouts import STALL_S, TURN_AWAY_S, limit

PIECE_BYTES = 256 * 1024  # the fastest size measured: 326-392 MB/s, versus 188-208 MB/s for 1 to 4 MiB
CONTROL_BYTES = 64 * 1024
SMALL_BYTES = 16 * 1024  # messages up to this size are sent in one write: three writes would be three packets
END_MARK = b"end\n"
TURNED_AWAY = {"turned_away": True}
"""A refusal. If the refused peer was excluded from the run, it also contains "why", a key of EXCLUSIONS."""


class BrokenStream(Exception):
    """The stream ended early, stalled, or carried bytes that differ from those announced. A retry may succeed."""


class Unreadable(BrokenStream):
    """The received bytes are not a valid message. The sender is at fault, not the network."""


class TurnedAway(BrokenStream):
    """The remote peer refuses this peer: this peer is not on the remote peer's allow-list, or is not a member yet.

    `why`: the key of EXCLUSIONS if the remote peer states that this peer was excluded from the run, else "".
    """

    def __init__(self, why: str = "") -> None:
        super().__init__("it refuses requests from this peer")
        self.why = why


def _ignore(count: int) -> None:
    pass


class Stream:
    """A message stream over a reader and a writer. `stall_s`: time limit for each piece.

    `reserve`: called with the announced size of each incoming message; returns a context manager that is held while the
    message arrives. `moved_bytes`: number of bytes sent and received so far.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, stall_s: float = STALL_S) -> None:
        self._reader = reader
        self._writer = writer
        self._stall_s = stall_s
        self.reserve: Callable[[int], AbstractContextManager[object]] = nullcontext
        self.moved_bytes = 0

    async def send(self, content: bytes, *, digest: bytes = b"", count: Callable[[int], None] = _ignore) -> None:
        """Send one message. `digest`: its sha256, if already known. `count`: called with the size of each piece."""
        header = len(content).to_bytes(8, "big") + (digest or hashlib.sha256(content).digest())
        if len(content) <= SMALL_BYTES:
            await self.write(b"".join((header, content, END_MARK)))
            count(len(content))
            return
        await self.write(header)
        view = memoryview(content)
        for start in range(0, len(content), PIECE_BYTES):
            piece = view[start : start + PIECE_BYTES]
            await self.write(piece)
            count(len(piece))
        await self.write(END_MARK)

    async def receive(
        self, *, at_most: int, patience_s: float | None = STALL_S, count: Callable[[int], None] = _ignore
    ) -> bytes:
        """Receive one message of up to `at_most` bytes. Raises Unreadable if it is longer, BrokenStream on failure.

        `patience_s`: time limit for the message's header; if None, only the caller's limit applies. `count`: called
        with the size of each piece received.
        """
        header = await self._read(40, patience_s)
        length, digest = int.from_bytes(header[:8], "big"), header[8:]
        if length > at_most:
            raise Unreadable(f"a message of {length} bytes was announced; at most {at_most} are allowed")
        content, seen = io.BytesIO(), hashlib.sha256()  # BytesIO grows as bytes arrive; getvalue() does not copy
        with self.reserve(length):
            async for piece in self.pieces(length):
                content.write(piece)
                seen.update(piece)
                count(len(piece))
        if seen.digest() != digest:
            raise BrokenStream("the content does not have the announced sha256")
        return content.getvalue()

    async def pieces(self, length: int) -> AsyncIterator[bytes]:
        """Yield `length` raw bytes as they arrive, then check the end mark. Time limit: `stall_s` per 256 KiB."""
        loop, left = asyncio.get_running_loop(), length
        while left:
            of_piece, until_s = min(PIECE_BYTES, left), loop.time() + self._stall_s
            left -= of_piece
            while of_piece:
                piece = await self._read_some(of_piece, until_s - loop.time())
                of_piece -= len(piece)
                yield piece
        if await self._read(len(END_MARK), self._stall_s) != END_MARK:
            raise BrokenStream("the end mark is missing after the message")

    async def send_object(self, value: dict[str, Any]) -> None:
        await self.send(msgpack.packb(value))

    async def receive_object(
        self, *, patience_s: float | None = STALL_S, at_most: int = CONTROL_BYTES
    ) -> dict[str, Any]:
        """Receive one small control message (a map). Raises TurnedAway if it is a refusal."""
        try:
            value = msgpack.unpackb(await self.receive(at_most=at_most, patience_s=patience_s))
        except ValueError as error:  # base class of all unpacking errors of msgpack
            raise Unreadable(f"unreadable control message: {error}") from error
        if not isinstance(value, dict):
            raise Unreadable(f"a control message must be a map, not {type(value).__name__}")
        if value.items() >= TURNED_AWAY.items():
            raise TurnedAway(next((word for word in EXCLUSIONS if word == value.get("why")), ""))
        return value

    async def turn_away(self, why: str = "") -> None:
        """Send the remote peer an explicit refusal; otherwise it would assume a network fault.

        `why`: the key of EXCLUSIONS if the remote peer was excluded from the run.
        """
        async with limit(TURN_AWAY_S):
            await self.send_object(TURNED_AWAY | ({"why": why} if why else {}))
            await self.ended()

    async def hold(self, seconds: float) -> None:
        """Wait for `seconds`, or until the remote side closes the stream. Data stays unread, which stops its sender."""
        with suppress(TimeoutError, OSError):
            async with limit(seconds):
                if await self._reader.read(1):
                    await asyncio.sleep(seconds)

    async def ended(self) -> None:
        """Wait until the remote side closes the stream, because it has read everything or has exited."""
        try:
            async with limit(self._stall_s):
                await self._reader.read(1)
        except TimeoutError as error:
            raise BrokenStream(f"the remote side kept the stream open for {self._stall_s:g} s") from error
        except OSError:
            return  # a reset ends the stream as well

    def abort(self) -> None:
        """Close both directions immediately and drop unsent data. A normal close would wait until the data is read."""
        self._writer.transport.abort()

    async def write(self, piece: bytes | memoryview) -> None:
        """Write raw bytes and wait until the transport accepts more."""
        self.moved_bytes += len(piece)
        async with _in_time(self._stall_s, "nothing was accepted"):
            self._writer.write(piece)
            await self._writer.drain()

    async def _read_some(self, at_most: int, limit_s: float) -> bytes:
        """Read and return up to `at_most` bytes as soon as any are available."""
        async with _in_time(limit_s, "the rest of a piece did not arrive"):
            piece = await self._reader.read(at_most)
        if not piece:
            raise BrokenStream("the stream ended early")
        self.moved_bytes += len(piece)
        return piece

    async def _read(self, size: int, limit_s: float | None) -> bytes:
        try:
            async with _in_time(limit_s, "nothing was received"):
                return await self._reader.readexactly(size)
        except asyncio.IncompleteReadError as error:
            raise BrokenStream(f"the stream ended {size - len(error.partial)} bytes early") from error


@asynccontextmanager
async def _in_time(limit_s: float | None, failure: str) -> AsyncIterator[None]:
    """Apply a time limit to a stream operation, and convert its timeouts and OSErrors to BrokenStream."""
    try:
        async with limit(limit_s):
            yield
    except TimeoutError as error:
        raise BrokenStream(f"{failure} for {limit_s:.3g} s") from error
    except OSError as error:
        raise BrokenStream(f"the stream was reset: {error}") from error
