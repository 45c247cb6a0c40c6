"""Assemble content from the bytes of one or several sources, and find the sources that sent wrong bytes.

The sha256 of the whole content reveals that some bytes are wrong, but not which ones. If all bytes came from one
source, that source is at fault. Otherwise the bytes are discarded, and from then on, bytes from different sources are
not mixed: a source may only continue its own bytes. Once the content is complete and correct, it reveals which of the
discarded bytes were wrong.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass

from outerloop.swarm.transfer.content_store import ReceiveBuffer

BLOCK_BYTES = 1 << 20
"""Minimum number of bytes hashed at once in a thread; hashing 1 MiB takes 0.6 ms. The rest at the end is hashed on the
event loop."""


@dataclass
class _Part:
    """A range of consecutive bytes from one source."""

    source: str
    start: int
    end: int


class ContentAssembler:
    """Content that is being received. Writes the bytes to `buffer`, and records which source sent which bytes."""

    def __init__(self, sha: bytes, length: int, buffer: ReceiveBuffer) -> None:
        self.sha = sha
        self.length = length
        self._buffer = buffer
        self._seen = hashlib.sha256()
        self._unhashed: list[bytes] = []
        self._parts: list[_Part] = []
        self._unmixed = False
        self._suspects: list[tuple[_Part, bytes]] = []  # discarded parts, and the sha256 of each

    def __len__(self) -> int:
        return self._buffer.tell()

    def __str__(self) -> str:
        return f"{self.sha.hex()[:16]} ({len(self)} of {self.length} bytes received)"

    def attribute_to(self, source: str) -> None:
        """Attribute the next bytes to `source`. If sources must not be mixed, discard the bytes from other sources."""
        if self._unmixed and self._contributors() - {source}:
            self._clear()
        if not self._parts or self._parts[-1].source != source:
            self._parts.append(_Part(source, len(self), len(self)))

    async def add(self, piece: bytes) -> None:
        """Append received bytes. Calls must not overlap."""
        self._buffer.write(piece)
        self._parts[-1].end = len(self)
        self._unhashed.append(piece)
        if sum(map(len, self._unhashed)) >= BLOCK_BYTES:
            await asyncio.to_thread(self._hash)

    def complete(self) -> bool:
        return len(self) == self.length

    def matches_hash(self) -> bool:
        """Return whether the received bytes have the expected sha256."""
        self._hash()
        return self._seen.digest() == self.sha

    def reject(self) -> str | None:
        """Discard the received bytes as invalid. Return the source that sent them, or None if there were several.

        At least one byte must have been received.
        """
        contributors = self._contributors()
        if len(contributors) > 1:
            self._suspects = [(part, _sha(self._between(part))) for part in self._parts if part.end > part.start]
            self._unmixed = True
        self._clear()
        return contributors.pop() if len(contributors) == 1 else None

    def bad_sources(self) -> set[str]:
        """Return the sources whose discarded bytes were wrong. The content must be complete and correct."""
        return {part.source for part, given in self._suspects if _sha(self._between(part)) != given}

    def _hash(self) -> None:
        """Hash the pieces received since the last call.

        These pieces are kept separately, because `buffer` cannot grow while a view of it exists.
        """
        for piece in self._unhashed:
            self._seen.update(piece)
        self._unhashed.clear()

    def _contributors(self) -> set[str]:
        return {part.source for part in self._parts if part.end > part.start}

    def _between(self, part: _Part) -> memoryview:
        return self._buffer.getbuffer()[part.start : part.end]

    def _clear(self) -> None:
        self._buffer.clear()
        self._seen, self._unhashed, self._parts = hashlib.sha256(), [], []


def _sha(piece: memoryview) -> bytes:
    return hashlib.sha256(piece).digest()
