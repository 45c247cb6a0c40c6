"""The store of content that this peer offers to others, keyed by sha256, and the buffers for downloads.

A download is written to a buffer that grows with it, or to a fixed part of a larger buffer.
"""

from __future__ import annotations

import hashlib
import io
from typing import Protocol

from outerloop.swarm.storage import Buffer


class ReceiveBuffer(Protocol):
    """A buffer that is written sequentially from its beginning."""

    def write(self, piece: bytes, /) -> object: ...

    def tell(self) -> int:
        """Return the number of bytes written."""
        ...

    def getbuffer(self) -> memoryview:
        """Return a view of the bytes written, without a copy."""
        ...

    def clear(self) -> None:
        """Discard all bytes."""
        ...


class GrowingBuffer(io.BytesIO):
    """A buffer that grows as bytes arrive, instead of allocating the announced length. `getvalue` makes no copy."""

    def clear(self) -> None:
        self.seek(0)
        self.truncate()


class FixedBuffer:
    """A buffer of exactly the content's size, which is part of a larger buffer."""

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


class ContentStore:
    """A reference-counted map sha256 -> content. Content that is put twice is kept until it is dropped twice."""

    def __init__(self) -> None:
        self._held: dict[bytes, bytes] = {}
        self._times: dict[bytes, int] = {}

    def put(self, content: bytes) -> bytes:
        """Store `content`, and return its sha256, by which other peers request it."""
        sha = hashlib.sha256(content).digest()
        self._held[sha] = content
        self._times[sha] = self._times.get(sha, 0) + 1
        return sha

    def drop(self, sha: bytes) -> None:
        """Undo one `put`. Uploads in progress still finish."""
        self._times[sha] -= 1
        if not self._times[sha]:
            del self._times[sha], self._held[sha]

    def get(self, sha: bytes) -> bytes | None:
        return self._held.get(sha)


class EmptyStore:
    """A store without content, for a peer that downloads but serves nothing."""

    def get(self, sha: bytes) -> Buffer | None:
        return None
