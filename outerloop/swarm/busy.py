"""For how long something has been under way: things that overlap count once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Busy:
    """`clock` in seconds. One thread says what is under way, any may ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._under_way = 0
        self._state: tuple[float, float | None] = (0.0, None)  # up to the last change; since when, if under way

    @contextmanager
    def during(self) -> Iterator[None]:
        """One thing is under way."""
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
