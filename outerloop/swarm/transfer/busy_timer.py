"""For how long something has been under way: things that overlap count once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager


class BusyTimer:
    """By the clock of the loop that says what is under way; any thread may ask."""

    def __init__(self) -> None:
        self._clock = time.monotonic
        self._under_way = 0
        self._state: tuple[float, float | None] = (0.0, None)  # up to the last change; since when, if under way

    @contextmanager
    def during(self) -> Iterator[None]:
        """One thing is under way."""
        self._clock = asyncio.get_running_loop().time
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    def total_s(self) -> float:
        """Seconds so far in which at least one thing was under way."""
        past_s, since_s = self._state
        return past_s if since_s is None else past_s + self._clock() - since_s

    def _change(self, by: int) -> None:
        past_s = self.total_s()
        self._under_way += by
        self._state = past_s, self._clock() if self._under_way else None
