"""The agreement's memory on disk, beside the payloads of its rounds."""

from __future__ import annotations

from outerloop.swarm.disk import Disk
from outerloop.swarm.memory import Memory

NAME = "agreement"


class MemoryFile:
    """Of one peer, `own`."""

    def __init__(self, disk: Disk, *, own: str) -> None:
        self._disk = disk
        self._own = own

    def read(self, *, run: str) -> Memory | None:
        """What was written last in this run, if anything. Raises BadMessage when it is damaged or of another run."""
        if NAME not in self._disk.names():
            return None
        return Memory.from_bytes(bytes(self._disk.read(NAME)), run=run, peer=self._own)

    async def write(self, memory: Memory) -> None:
        """Returns when it is safe."""
        await self._disk.write(NAME, memory.to_bytes())
