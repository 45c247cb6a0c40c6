"""Which transfers to this peer run at once: TRANSFERS_AT_ONCE together, `of_one` from each holder, the others wait.

Holders that have wasted time (holders.Reputation) get SLOW_AT_ONCE of the slots at most, so that what the others give
never waits for those alone. One that is new and slow gives its slot up at the end of its turn (bulk.py).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from outerloop.swarm.holders import Holders, Reputation
from outerloop.swarm.timeouts import RETRY_S, limit

TRANSFERS_AT_ONCE = 8
"""So many share a link of 1 Mbit/s, and each still brings a piece in STALL_S."""
SLOW_AT_ONCE = TRANSFERS_AT_ONCE // 2


class Slots:
    """The transfers that run, by holder."""

    def __init__(self, reputation: Reputation, *, of_one: int) -> None:
        self._reputation = reputation
        self._of_one = of_one
        self._taken: Counter[str] = Counter()
        self._waiting = 0
        self._released = asyncio.Event()

    @property
    def taken(self) -> int:
        """How many transfers run."""
        return self._taken.total()

    @property
    def wanted(self) -> bool:
        """Whether a content waits for a slot."""
        return self._waiting > 0

    @asynccontextmanager
    async def one(self, holders: Holders) -> AsyncIterator[str]:
        """Have a slot, with a holder to ask in it. Raises Unobtainable when none of them can give the content."""
        while (holder := holders.next(self._free)) is None:
            await self._wait()
        self._taken[holder] += 1
        try:
            yield holder
        finally:
            self._taken -= Counter([holder])
            self._released.set()
            self._released = asyncio.Event()

    async def _wait(self) -> None:
        """Until a slot is released, or holders may have been named that are free."""
        self._waiting += 1
        try:
            with suppress(TimeoutError):
                async with limit(RETRY_S[1]):
                    await self._released.wait()
        finally:
            self._waiting -= 1

    def _free(self, holder: str) -> bool:
        """Whether a transfer from a holder may begin."""
        if self._taken[holder] >= self._of_one or self.taken >= TRANSFERS_AT_ONCE:
            return False
        slow = [one for one in self._taken.elements() if self._reputation.wasted_s[one]]
        return not self._reputation.wasted_s[holder] or len(slow) < SLOW_AT_ONCE
