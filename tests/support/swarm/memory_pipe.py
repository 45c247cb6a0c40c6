"""One direction of a stream in memory: delays, backpressure, and ends that look like libp2p's."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Protocol, cast

WINDOW_BYTES = 1024 * 1024  # written and not yet taken by the reader's buffer; a writer waits beyond it


class Fate(Protocol):
    """What befalls bytes on their way."""

    def leaves_s(self, source: str, size: int) -> float: ...

    def arrives_s(self, target: str, size: int) -> float: ...

    def is_held(self, source: str, target: str) -> bool: ...

    def is_broken_now(self) -> bool: ...


class Pipe:
    """What `Stream` uses of a StreamWriter, feeding `reader` at the other side. `over`: nothing moves any more."""

    partner: Pipe

    def __init__(self, fate: Fate, source: str, target: str) -> None:
        self.source = source
        self.target = target
        self.reader = asyncio.StreamReader()
        self.over = False
        self._fate = fate
        self._loop = asyncio.get_running_loop()
        self._leaving: deque[bytes] = deque()
        self._coming: deque[bytes] = deque()
        self._queue: deque[bytes] = deque()  # arrived, not yet in the reader's buffer; b"" is the end
        self.waiting_bytes = 0
        self._last_s = 0.0
        self._left: int | None = None
        self._paused = False
        self._moved = asyncio.Event()
        self.reader.set_transport(cast(Any, self))

    def write(self, piece: bytes | memoryview) -> None:
        if not self.over and len(piece):
            self.waiting_bytes += len(piece)
            self._send(bytes(piece))

    async def drain(self) -> None:
        await asyncio.sleep(0)
        while self.waiting_bytes > WINDOW_BYTES and not self.over:
            self._moved.clear()
            await self._moved.wait()
        if self.over:
            raise ConnectionResetError("the other side is gone")

    def close(self) -> None:
        """The writer is done, and reads no more either; what it wrote still arrives."""
        if not self.over:
            self._send(b"")

    def break_after(self, size: int) -> None:
        """The stream breaks when so many bytes have arrived; 0: at once."""
        self._left = size
        if not size:
            self._loop.call_soon(self.break_off)

    def break_off(self) -> None:
        """Both directions end. What is under way is lost, and to a reader it looks like any other end."""
        for pipe in (self, self.partner):
            pipe.end()

    @property
    def transport(self) -> Pipe:
        """As a StreamWriter's."""
        return self

    def abort(self) -> None:
        """As `close`: bytes that wait here keep no file open, and the end takes its time to the other side, too."""
        self.close()

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Hand on what has arrived, as far as the reader and the network let it."""
        while self._queue and not (self.over or self._paused or self._fate.is_held(self.source, self.target)):
            self._deliver(self._queue.popleft())

    def _send(self, piece: bytes) -> None:
        self._leaving.append(piece)
        self._loop.call_at(self._fate.leaves_s(self.source, len(piece)), self._leave)

    def _leave(self) -> None:
        """In order, whichever of two timers of the same time the loop takes first."""
        self._coming.append(piece := self._leaving.popleft())
        self._last_s = max(self._last_s, self._fate.arrives_s(self.target, len(piece)))
        self._loop.call_at(self._last_s, self._arrive)

    def _arrive(self) -> None:
        self._queue.append(self._coming.popleft())
        self.flush()

    def _deliver(self, piece: bytes) -> None:
        if not piece:
            self.end()
            self.partner.close_for_writing()
        elif self._fate.is_broken_now():
            self.break_off()
        else:
            self._feed(piece)

    def _feed(self, piece: bytes) -> None:
        self.waiting_bytes -= len(piece)
        self._moved.set()
        kept = piece if self._left is None else piece[: self._left]
        if self._left is not None:
            self._left -= len(kept)
        self.reader.feed_data(kept)
        if self._left == 0:
            self.break_off()

    def end(self) -> None:
        if not self.over:
            self.close_for_writing()
            self.reader.feed_eof()

    def close_for_writing(self) -> None:
        self.over = True
        self._queue.clear()
        self._moved.set()
