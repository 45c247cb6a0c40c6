"""Read a growing file of rows, without reading any part of it twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PIECE_BYTES = 1 << 20
"""Number of bytes that are read at once, so that a long file never fills the memory."""
MAX_LINE_BYTES = 1 << 22
"""Maximum number of bytes of a line; longer lines are skipped. The longest usual row is an error with its traceback."""


@dataclass(frozen=True)
class Batch:
    """Complete lines. `restarted`: whether the file is new or was replaced, so that all lines read before are void."""

    lines: list[str]
    restarted: bool


class RowFile:
    """A file of lines that another process appends to, or atomically replaces with fewer lines.

    Args:
        path: path of the file, which may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.inode, self.offset, self.rest = 0, 0, b""

    def read(self) -> Iterator[Batch]:
        """Yield the lines that were added since the last call, in batches. Only the first can have `restarted` set."""
        try:
            file = self.path.open("rb")
        except OSError:
            return
        with file:
            state = os.fstat(file.fileno())
            restarted = state.st_ino != self.inode or state.st_size < self.offset
            if restarted:
                self.inode, self.offset, self.rest = state.st_ino, 0, b""
                yield Batch([], restarted=True)
            file.seek(self.offset)
            while piece := file.read(PIECE_BYTES):
                self.offset += len(piece)
                yield Batch(self.complete_lines(piece), restarted=False)

    def restart(self) -> None:
        """Make the next call of `read` begin at the start of the file."""
        self.inode = 0

    def complete_lines(self, piece: bytes) -> list[str]:
        """Return the lines that end in this piece of the file, and keep the beginning of the next line in `rest`."""
        *lines, self.rest = (self.rest + piece).split(b"\n")
        if len(self.rest) > MAX_LINE_BYTES:
            self.rest = b""
        return [line.decode(errors="replace") for line in lines if line.strip()]

    def updated_s(self) -> float | None:
        """Return the time of the last write in seconds since 1970, or None if the file does not exist."""
        try:
            return self.path.stat().st_mtime
        except OSError:
            return None
