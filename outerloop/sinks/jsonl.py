"""metrics.jsonl: every row of a run, one JSON object a line, flushed as it comes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from outerloop.state import checkpoint


class Jsonl:
    """Appends rows to a file, after the rows of earlier sittings.

    Args:
        path: the file.
        earlier: rows to begin with; whatever else the file holds is dropped, atomically.
    """

    def __init__(self, path: Path, *, earlier: list[dict[str, Any]]) -> None:
        self.path = path
        self.begin(earlier)

    def begin(self, earlier: list[dict[str, Any]]) -> None:
        """Go on after these rows."""
        checkpoint.write_atomically(self.path, "".join(json.dumps(row) + "\n" for row in earlier).encode())
        self.file = self.path.open("a", buffering=1)

    def write(self, row: dict[str, Any]) -> None:
        """One row."""
        self.file.write(json.dumps(row) + "\n")

    def sync(self) -> None:
        """Every row so far is on disk."""
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """No more rows."""
        self.file.close()
