"""Write metrics.jsonl: one line with a JSON object for each row of a run, flushed after each row."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from outerloop.state import checkpoint


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
        self.file = self.path.open("a", buffering=1)

    def write(self, row: dict[str, Any]) -> None:
        """Append one row."""
        self.file.write(json.dumps(row) + "\n")

    def sync(self) -> None:
        """Sync all rows written so far to disk."""
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """Close the file."""
        self.file.close()
