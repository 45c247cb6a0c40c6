"""Payloads on their way into the store, each of them once, from its owner or whoever else holds it.

What is larger than allowed is not asked for, and what its owner did not sign for the round is not held: it is refused
by name, and not asked for again. An owner has one payload a round: of one that signs more, PAYLOADS_KEPT are held, and
of more only what the round came to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from outerloop.swarm.bulk import Bulk
from outerloop.swarm.commits import Participant
from outerloop.swarm.holders import Unobtainable
from outerloop.swarm.memory import ROUNDS_KEPT
from outerloop.swarm.roster import id_of
from outerloop.swarm.sealed import doubt
from outerloop.swarm.store import PAYLOADS_KEPT, Store
from outerloop.swarm.timeouts import PULL_S
from outerloop.swarm.trust import Trust

logger = logging.getLogger(__name__)
Key = tuple[int, Participant]


class Pulls:
    """`held` is told of every payload that has come; `sitting` is what its owner signed it for."""

    def __init__(
        self,
        bulk: Bulk,
        store: Store,
        trust: Trust,
        *,
        sitting: Callable[[], str],
        max_bytes: int,
        held: Callable[[int, Participant], None],
    ) -> None:
        self._bulk = bulk
        self._store = store
        self._trust = trust
        self._sitting = sitting
        self._max_bytes = max_bytes
        self._held = held
        self._refused: set[Key] = set()  # each cost its download, or was never asked for
        self._running: dict[Key, tuple[asyncio.Task[None], list[str]]] = {}

    def start(
        self, number: int, one: Participant, holders: Iterable[str], *, decided: bool = False
    ) -> asyncio.Task[None]:
        """Get it from these peers, besides those that are asked already. The task ends when it is here or cannot be.

        `decided`: it is part of a commit, and is held however many payloads its owner has offered.
        """
        task, known = self._running.get((number, one), (None, []))
        known += [peer for peer in dict.fromkeys(map(id_of, holders)) if peer not in known]
        if task is None:
            task = asyncio.create_task(self._pull(number, one, known, decided))
            self._running[number, one] = task, known
        return task

    def refused(self, number: int, one: Participant) -> bool:
        """Whether this cannot be taken, whoever gives it."""
        return (number, one) in self._refused

    def refuse(self, peer: str, reason: str) -> None:
        """A peer offered what cannot be taken."""
        self._trust.refusals.note("payloads", peer, reason)

    def drop_all_but(self, number: int, needed: Iterable[Participant]) -> None:
        """The round was decided: nobody needs its other payloads any more."""
        self._refused = {key for key in self._refused if key[0] > number - ROUNDS_KEPT}
        for (of, one), (task, _) in list(self._running.items()):
            if of == number and one not in needed:
                task.cancel()

    async def _pull(self, number: int, one: Participant, holders: list[str], decided: bool) -> None:
        try:
            if (number, one) not in self._store and not self.refused(number, one):
                await self._take(number, one, holders, decided)
        except Unobtainable as error:
            logger.warning("round %d: the payload of %s did not come: %s", number, one.peer, error)
        finally:
            del self._running[number, one]

    async def _take(self, number: int, one: Participant, holders: list[str], decided: bool) -> None:
        """Get it, look at it, hold it. Raises Unobtainable."""
        if self._too_many(number, one, decided):
            return
        content, reason = b"", f"a payload of {one.size_bytes} bytes, up to {self._max_bytes} are allowed"
        if one.size_bytes <= self._max_bytes:
            content = await self._get(one, holders)
            signatures, sitting = self._trust.signatures, self._sitting()
            reason = await doubt(content, signatures, sitting=sitting, number=number, peer=one.peer, state=one.state)
        if reason:
            self._refused.add((number, one))
            self.refuse(one.peer, reason)
            return
        if not self._too_many(number, one, decided):  # others may have come meanwhile
            await self._store.put(number, one, content)
            self._held(number, one)

    def _too_many(self, number: int, one: Participant, decided: bool) -> bool:
        """Whether its owner has offered too many others for this round; it may still be decided, and taken then."""
        if too_many := not decided and self._store.full(number, one.peer):
            self.refuse(one.peer, f"round {number}: it has offered {PAYLOADS_KEPT} other payloads")
        return too_many

    async def _get(self, one: Participant, holders: list[str]) -> bytes:
        return await self._bulk.get(one.digest, one.size_bytes, holders, at_most=self._max_bytes, timeout_s=PULL_S)
