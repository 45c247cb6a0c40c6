"""Wake the tasks that wait for a change."""

from __future__ import annotations

import asyncio


class Notifier:
    """Wakes the tasks of one event loop that wait for a change. Each task then checks again what it waits for."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Wake all tasks that are waiting."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self) -> None:
        """Wait until `notify` is called."""
        await self._changed.wait()
