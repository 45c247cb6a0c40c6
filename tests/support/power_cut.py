"""A model of what a file system keeps through a power cut: names and contents that were synced, and nothing else.

    cut = PowerCut(root, monkeypatch)     `root` itself is safe
    ...                                   the code under test; it writes real files
    cut.restore(elsewhere)                what would be found afterwards

A name is kept as of the last fsync of the folder that holds it, a content as of the last fsync of its file. Real file
systems often keep more, none has to. Links and renames are names like any other.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest


class PowerCut:
    """Below `root`, from construction on."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._names: dict[int, dict[str, int]] = {}  # inode of a folder -> its names, and inodes
        self._contents: dict[int, bytes] = {}
        self._kept: list[Any] = []  # open files: no inode is used again
        sync = os.fsync

        def fsync(descriptor: int) -> None:
            sync(descriptor)
            path = Path(f"/proc/self/fd/{descriptor}").resolve()
            if path.is_relative_to(root):
                self.note_sync(path, os.fstat(descriptor))

        monkeypatch.setattr(os, "fsync", fsync)

    def restore(self, elsewhere: Path) -> Path:
        """Write what is kept into a new folder."""
        self._restore(self._root.stat().st_ino, elsewhere)
        return elsewhere

    def note_sync(self, path: Path, status: os.stat_result) -> None:
        """Keep what a file or folder holds now: it has been synced."""
        self._kept.append(os.open(path, os.O_RDONLY))
        if stat.S_ISDIR(status.st_mode):
            names = {}
            for entry in os.scandir(path):
                names[entry.name] = entry.inode()
                self._kept.append(os.open(entry.path, os.O_RDONLY))
            self._names[status.st_ino] = names
        else:
            self._contents[status.st_ino] = path.read_bytes()

    def _restore(self, folder: int, target: Path) -> None:
        target.mkdir()
        for name, inode in self._names.get(folder, {}).items():
            if inode in self._names or inode not in self._contents:
                self._restore(inode, target / name)
            else:
                (target / name).touch(0o600)
                (target / name).write_bytes(self._contents[inode])
