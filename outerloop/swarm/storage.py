"""Crash-safe files: a file is either complete or absent, and it is synced to disk before its write returns."""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from outerloop.state.durable import make_folder, sync_folder
from outerloop.state.file_lock import lock_file
from outerloop.swarm.resource_exhaustion import EXHAUSTION

Buffer = bytes | mmap.mmap | memoryview


class Disk(Protocol):
    """A store of bytes by name. `Folder` is the real implementation; tests can use a dictionary."""

    def names(self) -> list[str]: ...

    def read(self, name: str) -> Buffer:
        """Return the bytes stored under `name`, which stay readable even after `remove`.

        Raises FileNotFoundError if `name` does not exist.
        """
        ...

    async def write(self, name: str, content: bytes | memoryview) -> None:
        """Store `content` under `name`, and return once it is synced to disk."""
        ...

    def remove(self, name: str) -> None: ...


class Folder:
    """A folder of files, written in a separate thread so that a slow disk does not block the event loop.

    Use `synced=False` for files whose loss only costs time and whose content is verified on every read.
    """

    def __init__(self, path: Path, *, synced: bool = True) -> None:
        self._path = path
        self._synced = synced
        make_folder(path)

    def cleared(self) -> Folder:
        """Remove the partial files left behind by a killed process, and return this folder.

        Only the single process that writes to this folder may call this, and only before its first write. Otherwise
        the call would remove files that are still being written.
        """
        for begun in self._path.glob(".*"):
            begun.unlink()
        return self

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Lock the file `name` during a `with` block, so that it can be read and rewritten; other callers wait.

        The lock is the file `name`.lock in this folder. Raises UserError if the file system has no locks.
        """
        with (self._path / f"{name}.lock").open("a") as lock:
            lock_file(lock, fcntl.LOCK_EX)  # closing the file releases it
            yield

    def names(self) -> list[str]:
        return [file.name for file in self._path.iterdir() if not file.name.startswith(".")]

    def read(self, name: str) -> Buffer:
        """Return the file as a read-only memory map, so that serving it to peers does not copy it into this process."""
        with (self._path / name).open("rb") as file:
            empty = os.fstat(file.fileno()).st_size == 0
            return b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    async def write(self, name: str, content: bytes | memoryview) -> None:
        """Store `content` under `name` (see Disk.write), retrying while the disk is full or too many files are open."""
        await EXHAUSTION.wait_out(lambda: asyncio.to_thread(self._write, name, content), where=str(self._path))

    def remove(self, name: str) -> None:
        (self._path / name).unlink(missing_ok=True)

    def _write(self, name: str, content: bytes | memoryview) -> None:
        temporary = self._path / f".{name}"
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                if self._synced:
                    os.fsync(file.fileno())
        except OSError:
            temporary.unlink(missing_ok=True)  # the partial file would occupy the space that the retry needs
            raise
        temporary.replace(self._path / name)
        if self._synced:
            sync_folder(self._path)
