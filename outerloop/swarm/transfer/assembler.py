"""Content on its way: the bytes that are here so far, and who gave which, so that a liar can be named.

The sha256 of the whole says that something is wrong, not what. While all bytes come from one holder that is enough.
Else the bytes are thrown away, and from then on a holder continues only its own; when the right content is here, it
shows which of the bytes thrown away were wrong.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass

from outerloop.swarm.transfer.receive_buffer import ReceiveBuffer

BLOCK_BYTES = 1 << 20
"""Is hashed beside the loop, .6 ms of it; what is left of the last block is not."""


@dataclass
class _Part:
    """Consecutive bytes from one holder."""

    holder: str
    start: int
    end: int


class ContentAssembler:
    """Fills `room` with what arrives."""

    def __init__(self, sha: bytes, length: int, room: ReceiveBuffer) -> None:
        self.sha = sha
        self.length = length
        self._room = room
        self._seen = hashlib.sha256()
        self._unhashed: list[bytes] = []
        self._parts: list[_Part] = []
        self._unmixed = False
        self._suspects: list[tuple[_Part, bytes]] = []  # with the sha256 of what was given

    def __len__(self) -> int:
        return self._room.tell()

    def __str__(self) -> str:
        return f"{self.sha.hex()[:16]} ({len(self)} of {self.length} bytes are here)"

    def turn_to(self, holder: str) -> None:
        """The next bytes come from this holder."""
        if self._unmixed and self._givers() - {holder}:
            self._clear()
        if not self._parts or self._parts[-1].holder != holder:
            self._parts.append(_Part(holder, len(self), len(self)))

    async def add(self, piece: bytes) -> None:
        """One at a time."""
        self._room.write(piece)
        self._parts[-1].end = len(self)
        self._unhashed.append(piece)
        if sum(map(len, self._unhashed)) >= BLOCK_BYTES:
            await asyncio.to_thread(self._hash)

    def complete(self) -> bool:
        return len(self) == self.length

    def right(self) -> bool:
        """Whether the bytes that are here are the content."""
        self._hash()
        return self._seen.digest() == self.sha

    def reject(self) -> str | None:
        """Throw wrong bytes away; who gave them, if it was one holder alone."""
        givers = self._givers() or {self._parts[-1].holder}
        if len(givers) > 1:
            self._suspects = [(part, _sha(self._between(part))) for part in self._parts if part.end > part.start]
            self._unmixed = True
        self._clear()
        return givers.pop() if len(givers) == 1 else None

    def liars(self) -> set[str]:
        """Who gave bytes, thrown away since, that are not those of the content, which is here by now."""
        return {part.holder for part, given in self._suspects if _sha(self._between(part)) != given}

    def _hash(self) -> None:
        """What has come since: the pieces, for a view into the room would keep it from growing."""
        for piece in self._unhashed:
            self._seen.update(piece)
        self._unhashed.clear()

    def _givers(self) -> set[str]:
        return {part.holder for part in self._parts if part.end > part.start}

    def _between(self, part: _Part) -> memoryview:
        return self._room.getbuffer()[part.start : part.end]

    def _clear(self) -> None:
        self._room.clear()
        self._seen, self._unhashed, self._parts = hashlib.sha256(), [], []


def _sha(piece: memoryview) -> bytes:
    return hashlib.sha256(piece).digest()
