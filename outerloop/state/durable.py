"""Create directories that survive a power failure.

fsync of a new file is not enough: the directory that lists the file must be synced too, and so must the parent of each
new directory.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def make_folder(path: Path) -> Path:
    """Create a directory with its parents, and sync all parents that this user may open. Return the directory.

    Parents that existed before are synced too, because the process that created them may not have done so. A parent
    that this user may not open was created by another user.
    """
    path.mkdir(parents=True, exist_ok=True)
    for parent in path.absolute().parents:
        with suppress(PermissionError):
            sync_folder(parent)
    return path


def sync_folder(path: Path) -> None:
    """Sync the entries of a directory."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
