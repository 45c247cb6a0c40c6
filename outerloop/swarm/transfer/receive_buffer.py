"""Buffers for the content being downloaded: one that grows with it, or a fixed part of a larger buffer."""

from __future__ import annotations

import io
from typing import Protocol


class ReceiveBuffer(Protocol):
    """A buffer that is written in order, from its beginning."""

    def write(self, piece: bytes, /) -> object: ...

    def tell(self) -> int:
        """Return the number of bytes written."""
        ...

    def getbuffer(self) -> memoryview:
        """Return the bytes written, without a copy."""
        ...

    def clear(self) -> None:
        """Discard all bytes."""
        ...


class GrowingBuffer(io.BytesIO):
    """A buffer as large as the bytes received, whatever length was announced. `getvalue` makes no copy."""

    def clear(self) -> None:
        self.seek(0)
        self.truncate()


class FixedBuffer:
    """A buffer exactly as large as the content, within a larger buffer."""

    def __init__(self, view: memoryview) -> None:
        self._view, self._end = view, 0

    def write(self, piece: bytes, /) -> None:
        self._view[self._end : self._end + len(piece)] = piece
        self._end += len(piece)

    def tell(self) -> int:
        return self._end

    def getbuffer(self) -> memoryview:
        return self._view[: self._end]

    def clear(self) -> None:
        self._end = 0
