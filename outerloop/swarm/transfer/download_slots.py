"""Which transfers to this peer run at once: TRANSFERS_AT_ONCE together, `of_one` from each holder, the others wait.

Holders that have wasted time (sources.SourceReputation) get SLOW_AT_ONCE of the slots at most, so that what the others
give never waits for those alone. One that is new and slow gives its slot up at the end of its turn (bulk.py).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from outerloop.swarm.timeouts import RETRY_S, limit
from outerloop.swarm.transfer.sources import SourceReputation, Sources

TRANSFERS_AT_ONCE = 8
"""So many share a link of 1 Mbit/s, and each still brings a piece in STALL_S."""
SLOW_AT_ONCE = TRANSFERS_AT_ONCE // 2


class DownloadSlots:
    """The transfers that run, by holder."""

    def __init__(self, reputation: SourceReputation, *, of_one: int) -> None:
        self._reputation = reputation
        self._of_one = of_one
        self._taken: Counter[str] = Counter()
        self._waiting: dict[asyncio.Event, Sources] = {}

    @property
    def taken(self) -> int:
        """How many transfers run."""
        return self._taken.total()

    @property
    def wanted(self) -> bool:
        """Whether a content waits for a slot."""
        return bool(self._waiting)

    @asynccontextmanager
    async def one(self, holders: Sources) -> AsyncIterator[str]:
        """Have a slot, with a holder to ask in it. Raises ContentUnavailable when none of them can give the content."""
        holder = await self._next(holders)
        self._taken[holder] += 1
        try:
            yield holder
        finally:
            self._taken -= Counter([holder])
            self._call()

    async def _next(self, holders: Sources) -> str:
        """The holder to ask, once one may be asked; more may be named meanwhile."""
        called = asyncio.Event()
        self._waiting[called] = holders
        try:
            while (holder := holders.next(self._free)) is None:
                called.clear()
                with suppress(TimeoutError):
                    async with limit(RETRY_S[1]):
                        await called.wait()
            return holder
        finally:
            del self._waiting[called]

    def _call(self) -> None:
        """Wake the content that has waited longest of those that may begin."""
        for called, holders in self._waiting.items():
            if not called.is_set() and holders.next(self._free) is not None:
                called.set()
                return

    def _free(self, holder: str) -> bool:
        """Whether a transfer from a holder may begin."""
        if self._taken[holder] >= self._of_one or self.taken >= TRANSFERS_AT_ONCE:
            return False
        slow = [one for one in self._taken.elements() if self._reputation.wasted_s[one]]
        return not self._reputation.wasted_s[holder] or len(slow) < SLOW_AT_ONCE
