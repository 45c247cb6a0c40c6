"""Measure the total time in which at least one operation was running."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager


class BusyTimer:
    """A timer of overlapping operations, by the event loop's clock. `total_s` may be called from any thread."""

    def __init__(self) -> None:
        self._clock = time.monotonic
        self._under_way = 0
        self._state: tuple[float, float | None] = (0.0, None)  # total at the last change; its time, if busy

    @contextmanager
    def during(self) -> Iterator[None]:
        """Count one operation as running inside this block."""
        self._clock = asyncio.get_running_loop().time
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    def total_s(self) -> float:
        """Return the seconds so far in which at least one operation was running."""
        past_s, since_s = self._state
        return past_s if since_s is None else past_s + self._clock() - since_s

    def _change(self, by: int) -> None:
        past_s = self.total_s()
        self._under_way += by
        self._state = past_s, self._clock() if self._under_way else None
