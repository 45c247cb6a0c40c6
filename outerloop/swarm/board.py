"""A notice board: what this peer says about each round. Who asks too early waits; who asks too late is told so."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

from outerloop.types import Round

T = TypeVar("T")


class Board(Generic[T]):
    """Round -> value, awaitable; only the last `keep` rounds of each fragment stay."""

    def __init__(self, *, keep: int) -> None:
        self._keep = keep
        self._said: dict[int, dict[int, T]] = {}  # fragment -> round number -> value
        self._news = asyncio.Event()

    def post(self, round: Round, value: T) -> list[T]:
        """Say it, and forget what is too old; what was forgotten."""
        said = self._said.setdefault(round.fragment, {})
        said[round.number] = value
        forgotten = [said.pop(number) for number in sorted(said)[: -self._keep]]
        self._news.set()
        self._news = asyncio.Event()
        return forgotten

    def get(self, round: Round) -> T | None:
        return self._said.get(round.fragment, {}).get(round.number)

    async def read(self, round: Round) -> T | None:
        """The value, as soon as there is one. None: there never will be, a later round of the fragment is here."""
        while (value := self.get(round)) is None and not self._is_past(round):
            await self._news.wait()
        return value

    def _is_past(self, round: Round) -> bool:
        return any(number > round.number for number in self._said.get(round.fragment, {}))
