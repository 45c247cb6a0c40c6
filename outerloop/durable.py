"""Folders that a power cut leaves in place.

A file whose content was synced is lost all the same when the name of its folder, or of a folder above, was not: a name
is safe once the folder that holds it has been synced after the name was made.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def make_folder(path: Path) -> Path:
    """Make a folder with those above it, and return it once all their names are safe.

    Those that were there are synced, too: who made them may not have done so. One that may not be read was made by
    somebody else, and is passed over.
    """
    path.mkdir(parents=True, exist_ok=True)
    for above in path.absolute().parents:
        with suppress(PermissionError):
            sync_folder(above)
    return path


def sync_folder(path: Path) -> None:
    """Make the names in a folder safe."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
