"""Files that outlive a crash: each is there whole or not at all, and safe before anybody is told of it."""

from __future__ import annotations

import asyncio
import mmap
import os
from pathlib import Path
from typing import Protocol

from outerloop.state.durable import make_folder, sync_folder
from outerloop.swarm.resource_exhaustion import EXHAUSTION

Buffer = bytes | mmap.mmap | memoryview


class Disk(Protocol):
    """Named contents; `Folder` is the real one, a dictionary is enough for tests."""

    def names(self) -> list[str]: ...

    def read(self, name: str) -> Buffer:
        """A content, which stays readable when it is removed meanwhile. Raises FileNotFoundError."""
        ...

    async def write(self, name: str, content: bytes | memoryview) -> None:
        """Returns when it is safe."""
        ...

    def remove(self, name: str) -> None: ...


class Folder:
    """A folder of files. They are written in a thread beside the loop: a disk may be slow, and others are served.

    Not `synced`: for what is checked when it is read, and only costs time when it is lost.
    """

    def __init__(self, path: Path, *, synced: bool = True) -> None:
        self._path = path
        self._synced = synced
        make_folder(path)

    def cleared(self) -> Folder:
        """Return this folder without what a killed process had begun to write.

        For the one process that writes here, before it does: what another one has begun is not its own to remove.
        """
        for begun in self._path.glob(".*"):
            begun.unlink()
        return self

    def names(self) -> list[str]:
        return [file.name for file in self._path.iterdir() if not file.name.startswith(".")]

    def read(self, name: str) -> Buffer:
        """Mapped, not copied: what is given to others passes no memory of this process."""
        with (self._path / name).open("rb") as file:
            empty = os.fstat(file.fileno()).st_size == 0
            return b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    async def write(self, name: str, content: bytes | memoryview) -> None:
        """As of Disk; a full disk, or too many open files, are waited out."""
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
            temporary.unlink(missing_ok=True)  # what there is of it would take the space that is waited for
            raise
        temporary.replace(self._path / name)
        if self._synced:
            sync_folder(self._path)
