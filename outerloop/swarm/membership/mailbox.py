"""A notice board: what this peer says about each number. Who asks too early waits; who asks too late is told so."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Number -> value, awaitable; only the last `keep` values stay."""

    def __init__(self, *, keep: int) -> None:
        self._keep = keep
        self._said: dict[int, T] = {}
        self._over = -1  # nothing more will be said about numbers up to this one
        self._news = asyncio.Event()

    def post(self, number: int, value: T) -> None:
        """Say it; nothing will be said any more about earlier numbers."""
        self._said[number] = value
        for old in sorted(self._said)[: -self._keep]:
            del self._said[old]
        self.over(number - 1)

    def over(self, number: int) -> None:
        """Nothing more will be said about this number and earlier ones."""
        self._over = max(self._over, number)
        self._news.set()
        self._news = asyncio.Event()

    def get(self, number: int) -> T | None:
        return self._said.get(number)

    def take_back(self, number: int) -> None:
        """As if nothing had been said about this number and later ones: it may be said anew."""
        self._said = {known: value for known, value in self._said.items() if known < number}
        self._over = min(self._over, number - 1)

    async def read(self, number: int) -> T | None:
        """The value, as soon as there is one; None: there never will be. The caller sets the limit in time."""
        while (value := self.get(number)) is None and number > self._over:
            await self._news.wait()
        return value
