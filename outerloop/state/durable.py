"""Create directories that survive a power failure.

Syncing a new file is not enough: the directory that lists it must be synced too, and so must the parent of each new
directory.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def make_folder(path: Path) -> Path:
    """Create a directory and its parents, sync all parents that this user may open, and return the directory.

    Parents that already existed are synced too, because the process that created them may not have done so. A parent
    that this user may not open belongs to another user and is skipped.
    """
    path.mkdir(parents=True, exist_ok=True)
    for parent in path.absolute().parents:
        with suppress(PermissionError):
            sync_folder(parent)
    return path


def sync_folder(path: Path) -> None:
    """Flush the entries of a directory to disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
