"""Limit concurrent downloads to TRANSFERS_AT_ONCE in total and `max_per_source` per source; other downloads wait.

Sources that have wasted time (sources.SourceReputation) get at most SLOW_AT_ONCE of the slots, so that they can never
occupy all of them. A slow source without a record of wasted time loses its slot after its turn (bulk.py).

This module also measures the busy time of transfers: the total time during which at least one was running.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from outerloop.swarm.timeouts import RETRY_S, limit
from outerloop.swarm.transfer.sources import SourceReputation, Sources


class BusyTimer:
    """Measures, by the event loop's clock, how long at least one operation runs. Any thread may call `total_s`."""

    def __init__(self) -> None:
        self._clock = time.monotonic
        self._under_way = 0
        self._state: tuple[float, float | None] = (0.0, None)  # (total, time of last change or None if idle)

    @contextmanager
    def during(self) -> Iterator[None]:
        """Count one operation as running for the duration of a `with` block."""
        self._clock = asyncio.get_running_loop().time
        self._change(1)
        try:
            yield
        finally:
            self._change(-1)

    def total_s(self) -> float:
        """Return the total time in seconds during which at least one operation was running."""
        past_s, since_s = self._state
        return past_s if since_s is None else past_s + self._clock() - since_s

    def _change(self, by: int) -> None:
        past_s = self.total_s()
        self._under_way += by
        self._state = past_s, self._clock() if self._under_way else None


TRANSFERS_AT_ONCE = 8
"""Maximum number of concurrent transfers. If they share a 1 Mbit/s link, each still delivers a piece within STALL_S."""
SLOW_AT_ONCE = TRANSFERS_AT_ONCE // 2


class DownloadSlots:
    """The slots for concurrent downloads, counted per source."""

    def __init__(self, reputation: SourceReputation, *, max_per_source: int) -> None:
        self._reputation = reputation
        self._max_per_source = max_per_source
        self._taken: Counter[str] = Counter()
        self._waiting: dict[asyncio.Event, Sources] = {}

    @property
    def taken(self) -> int:
        """The number of running downloads."""
        return self._taken.total()

    @property
    def wanted(self) -> bool:
        """Return whether any download is waiting for a slot."""
        return bool(self._waiting)

    @asynccontextmanager
    async def acquire(self, sources: Sources) -> AsyncIterator[str]:
        """Wait for a slot, and yield the source to ask. Raises ContentUnavailable if no source is left."""
        source = await self._next(sources)
        self._taken[source] += 1
        try:
            yield source
        finally:
            self._taken -= Counter([source])
            self._call()

    async def _next(self, sources: Sources) -> str:
        """Wait until a source may be asked, and return it. The list of sources may grow during the wait."""
        called = asyncio.Event()
        self._waiting[called] = sources
        try:
            while (source := sources.next(self._free)) is None:
                called.clear()
                with suppress(TimeoutError):
                    async with limit(RETRY_S[1]):
                        await called.wait()
            return source
        finally:
            del self._waiting[called]

    def _call(self) -> None:
        """Wake the longest-waiting download that can start now."""
        for called, sources in self._waiting.items():
            if not called.is_set() and sources.next(self._free) is not None:
                called.set()
                return

    def _free(self, source: str) -> bool:
        """Return whether a download from this source may start."""
        if self._taken[source] >= self._max_per_source or self.taken >= TRANSFERS_AT_ONCE:
            return False
        slow = [other for other in self._taken.elements() if self._reputation.wasted_s[other]]
        return not self._reputation.wasted_s[source] or len(slow) < SLOW_AT_ONCE
