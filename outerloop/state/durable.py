"""Make directories that survive a power cut.

fsync of a file is not enough: the directory entries of the file and of each parent must be synced too, after they were
made.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def make_folder(path: Path) -> Path:
    """Make a directory with its parents, and sync the entries of all parents that this user may open.

    Returns the directory. Parents that existed before are synced too: the process that made them may not have done so.
    A parent that this user may not open was made by another user.
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
