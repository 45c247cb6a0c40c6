"""A limit in bytes per second, shared by everything that sends, on the loop's clock."""

from __future__ import annotations

import asyncio


class Pace:
    """Who takes a turn waits until everything taken before it is through. `bytes_per_s` None: nobody waits.

    Nothing is saved up while nobody sends: by any time t after the first turn at most `bytes_per_s` * t bytes and one
    turn have left.
    """

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    async def take(self, count: int) -> None:
        """Wait for the turn of `count` bytes."""
        if self._bytes_per_s is None:
            return
        now_s = asyncio.get_running_loop().time()
        turn_s = max(now_s, self._free_at_s)
        self._free_at_s = turn_s + count / self._bytes_per_s
        await asyncio.sleep(turn_s - now_s)
