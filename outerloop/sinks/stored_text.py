"""Store the id or name under which a logger knows a run in the run directory, so that a resumed run keeps it."""

from __future__ import annotations

from pathlib import Path

from outerloop.state import checkpoint


def stored_text(file: Path, default: str) -> str:
    """Return the text of a file. If the file does not exist, create it with the text `default`."""
    if not file.exists():
        checkpoint.write_atomically(file, default.encode())
    return file.read_text()
