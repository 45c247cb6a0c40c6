"""Limit concurrent downloads: TRANSFERS_AT_ONCE in total, `max_per_source` from each source; the others wait.

Sources that have wasted time (sources.SourceReputation) get at most SLOW_AT_ONCE of the slots, so that downloads from
other sources never wait for these alone. A slow source without a record gives up its slot after its turn (bulk.py).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from outerloop.swarm.timeouts import RETRY_S, limit
from outerloop.swarm.transfer.sources import SourceReputation, Sources

TRANSFERS_AT_ONCE = 8
"""When this many transfers share a link of 1 Mbit/s, each still delivers a piece within STALL_S."""
SLOW_AT_ONCE = TRANSFERS_AT_ONCE // 2


class DownloadSlots:
    """The slots of the running downloads, counted by source."""

    def __init__(self, reputation: SourceReputation, *, max_per_source: int) -> None:
        self._reputation = reputation
        self._max_per_source = max_per_source
        self._taken: Counter[str] = Counter()
        self._waiting: dict[asyncio.Event, Sources] = {}

    @property
    def taken(self) -> int:
        """Number of running downloads."""
        return self._taken.total()

    @property
    def wanted(self) -> bool:
        """Return whether a content waits for a slot."""
        return bool(self._waiting)

    @asynccontextmanager
    async def acquire(self, sources: Sources) -> AsyncIterator[str]:
        """Wait for a slot and yield the source to ask in it. Raises ContentUnavailable when no source is left."""
        source = await self._next(sources)
        self._taken[source] += 1
        try:
            yield source
        finally:
            self._taken -= Counter([source])
            self._call()

    async def _next(self, sources: Sources) -> str:
        """Wait until a source may be asked and return it. The list of sources may grow meanwhile."""
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
        """Wake the content that has waited longest among those that can start now."""
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
