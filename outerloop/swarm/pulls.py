"""Payloads on their way into the store, each of them once, from its owner or whoever else holds it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from outerloop.swarm.bulk import Bulk
from outerloop.swarm.commits import Participant
from outerloop.swarm.holders import Unobtainable
from outerloop.swarm.roster import id_of
from outerloop.swarm.store import Store
from outerloop.swarm.timeouts import PULL_S

logger = logging.getLogger(__name__)
Key = tuple[int, Participant]


class Pulls:
    """`held` is told of every payload that has come."""

    def __init__(self, bulk: Bulk, store: Store, *, max_bytes: int, held: Callable[[int, Participant], None]) -> None:
        self._bulk = bulk
        self._store = store
        self._max_bytes = max_bytes
        self._held = held
        self._running: dict[Key, tuple[asyncio.Task[None], list[str]]] = {}

    def start(self, number: int, one: Participant, holders: Iterable[str]) -> asyncio.Task[None]:
        """Get it from these peers, besides those that are asked already. The task ends when it is here or cannot be."""
        task, known = self._running.get((number, one), (None, []))
        known += [peer for peer in dict.fromkeys(map(id_of, holders)) if peer not in known]
        if task is None:
            task = asyncio.create_task(self._pull(number, one, known))
            self._running[number, one] = task, known
        return task

    def drop_all_but(self, number: int, needed: Iterable[Participant]) -> None:
        """The round was decided: nobody needs its other payloads any more."""
        for (of, one), (task, _) in list(self._running.items()):
            if of == number and one not in needed:
                task.cancel()

    async def _pull(self, number: int, one: Participant, holders: list[str]) -> None:
        try:
            if (number, one) not in self._store:
                await self._store.put(number, one, await self._get(one, holders))
                self._held(number, one)
        except Unobtainable as error:
            logger.warning("round %d: the payload of %s did not come: %s", number, one.peer, error)
        finally:
            del self._running[number, one]

    async def _get(self, one: Participant, holders: list[str]) -> bytes:
        return await self._bulk.get(one.digest, one.size_bytes, holders, at_most=self._max_bytes, timeout_s=PULL_S)
