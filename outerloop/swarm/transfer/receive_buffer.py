"""Where a content that is on its way comes to lie: in memory that grows with it, or in its place among others."""

from __future__ import annotations

import io
from typing import Protocol


class ReceiveBuffer(Protocol):
    """Written from its beginning on."""

    def write(self, piece: bytes, /) -> object: ...

    def tell(self) -> int:
        """Bytes that are here."""
        ...

    def getbuffer(self) -> memoryview:
        """Those bytes, not copied."""
        ...

    def clear(self) -> None:
        """None of them."""
        ...


class GrowingBuffer(io.BytesIO):
    """As large as what has come, whatever was announced; `getvalue` gives it away without a copy."""

    def clear(self) -> None:
        self.seek(0)
        self.truncate()


class FixedBuffer:
    """Exactly as large as the content is to be, within a larger one."""

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
