"""Write metrics.jsonl: one line with a JSON object for each row of a run, written at once.

While the disk is full, rows stay in memory, and a log line states what to do. The next row tries again.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from outerloop.state import checkpoint
from outerloop.swarm.resource_exhaustion import EXHAUSTION, REMEDIES
from outerloop.types import UserError


class Jsonl:
    """A sink that appends rows to a file, after the rows of earlier sessions.

    Args:
        path: path of the file.
        earlier: rows of earlier sessions. The file is atomically replaced by a file with these rows.
    """

    def __init__(self, path: Path, *, earlier: list[dict[str, Any]]) -> None:
        self.path = path
        self.rewrite(earlier)

    def rewrite(self, earlier: list[dict[str, Any]]) -> None:
        """Atomically replace the content of the file with these rows, and open it for appending."""
        checkpoint.write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in earlier).encode())
        self.file = self.path.open("ab", buffering=0)
        self.unwritten = bytearray()

    def write(self, row: dict[str, Any]) -> None:
        """Append one row. If the disk is full, keep the row in memory."""
        self.unwritten += json.dumps(row).encode() + b"\n"
        try:
            self.flush()
        except OSError as error:
            if not EXHAUSTION.note(error, where=str(self.path)):
                raise

    def flush(self) -> None:
        """Append all rows that are still in memory. Raises OSError if not all of them can be written."""
        while self.unwritten:
            del self.unwritten[: self.file.write(self.unwritten)]

    def sync(self) -> None:
        """Sync all rows so far to disk. Raises UserError if the disk is full."""
        try:
            self.flush()
            os.fsync(self.file.fileno())
        except OSError as error:
            if error.errno not in REMEDIES:
                raise
            raise UserError(
                f"{self.path} cannot be written ({error.strerror}): {REMEDIES[error.errno]}, then start the same"
                " command again"
            ) from error

    def close(self) -> None:
        """Append the rows that are still in memory, if possible, and close the file."""
        with suppress(OSError):
            self.flush()
        with suppress(OSError):
            self.file.close()
