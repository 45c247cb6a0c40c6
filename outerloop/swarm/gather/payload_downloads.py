"""Payloads on their way into the store, each of them once, from its owner or whoever else holds it.

What is larger than allowed is not asked for, and what its owner did not sign for the round is not held: it is refused
by name, and not asked for again. An owner has one payload a round: of one that signs more, PAYLOADS_KEPT are fetched
and held, and of more only what the round came to.

A leader can propose hashes of contents that nobody has: what nothing but proposals of left views wanted is not fetched
any longer. It is kept for one more view, which may propose the same payload again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile

from outerloop.swarm.access.access_control import AccessControl
from outerloop.swarm.consensus.commit import Participant
from outerloop.swarm.consensus.hard_state import ROUNDS_KEPT
from outerloop.swarm.gather.round_store import RoundStore
from outerloop.swarm.timeouts import PULL_S
from outerloop.swarm.transfer.bulk import Bulk
from outerloop.swarm.transfer.signed_payload import doubt
from outerloop.swarm.transfer.sources import ContentUnavailable
from outerloop.swarm.validation import id_of

logger = logging.getLogger(__name__)
Key = tuple[int, Participant]
PAYLOADS_KEPT = 4
"""Different payloads of one peer in one round: an honest one has one, and two liars that lead views one after the other
can name one each as its. What a majority has chosen is held besides."""


@dataclass
class _Pull:
    """A payload on its way. `views_left`: how many views it outlives; None: its owner offers it, or it is decided."""

    task: asyncio.Task[None]
    holders: list[str]
    views_left: int | None


class PayloadDownloads:
    """`held` is told of every payload that has come; `sitting` is what its owner signed it for."""

    def __init__(
        self,
        bulk: Bulk,
        store: RoundStore,
        trust: AccessControl,
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
        self._running: dict[Key, _Pull] = {}

    def start(
        self, number: int, one: Participant, holders: Iterable[str], *, decided: bool = False, proposed: bool = False
    ) -> asyncio.Task[None]:
        """Get it from these peers, besides those that are asked already. The task ends when it is here or cannot be.

        `decided`: it is part of a commit, and is held however many payloads its owner has offered. `proposed`: it is
        wanted in the view at hand, and nothing but the proposal is known of it.
        """
        pull = self._running.get((number, one))
        if pull is None:
            names: list[str] = []
            task = asyncio.create_task(self._pull(number, one, names, decided))
            pull = self._running[number, one] = _Pull(task, names, 1 if proposed else None)
        elif pull.views_left is not None:
            pull.views_left = 1 if proposed else None
        pull.holders += [peer for peer in dict.fromkeys(map(id_of, holders)) if peer not in pull.holders]
        return pull.task

    def refused(self, number: int, one: Participant) -> bool:
        """Whether this cannot be taken, whoever gives it."""
        return (number, one) in self._refused

    def refuse(self, peer: str, reason: str) -> None:
        """A peer offered what cannot be taken."""
        self._trust.refusals.note("payloads", peer, reason)

    def drop_all_but(self, number: int, needed: Iterable[Participant]) -> None:
        """The round was decided: nobody needs its other payloads any more."""
        self._refused = {key for key in self._refused if key[0] > number - ROUNDS_KEPT}
        for (of, one), pull in list(self._running.items()):
            if of == number and one in needed:
                pull.views_left = None
            elif of == number:
                self._drop((of, one))

    def next_view(self) -> None:
        """Another view begins: drop what was not proposed in the last one either, and is not wanted otherwise."""
        for key, pull in list(self._running.items()):
            if pull.views_left == 0:
                self._drop(key)
            elif pull.views_left is not None:
                pull.views_left -= 1

    def _drop(self, key: Key) -> None:
        """Stop a pull; who wants it from now on starts another one."""
        self._running.pop(key).task.cancel()

    async def _pull(self, number: int, one: Participant, holders: list[str], decided: bool) -> None:
        try:
            if (number, one) not in self._store and not self.refused(number, one):
                await self._take(number, one, holders, decided)
        except ContentUnavailable as error:
            logger.warning("round %d: the payload of %s did not come: %s", number, one.peer, error)
        finally:
            pull = self._running.get((number, one))
            if pull and pull.task is asyncio.current_task():
                del self._running[number, one]

    async def _take(self, number: int, one: Participant, holders: list[str], decided: bool) -> None:
        """Get it, look at it, hold it. Raises ContentUnavailable."""
        if not decided and self._too_many(number, one):
            self.refuse(one.peer, f"round {number}: there are {PAYLOADS_KEPT} other payloads of it")
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
        await self._store.put(number, one, content)
        self._held(number, one)

    def _too_many(self, number: int, one: Participant) -> bool:
        """Whether too many others of its owner are held, or were begun before it; it is taken if it is decided."""
        begun_before = takewhile(lambda key: key != (number, one), self._running)
        others = {*self._store.since(number), *begun_before}
        return sum(of == number and id_of(known.peer) == id_of(one.peer) for of, known in others) >= PAYLOADS_KEPT

    async def _get(self, one: Participant, holders: list[str]) -> bytes:
        return await self._bulk.get(one.digest, one.size_bytes, holders, at_most=self._max_bytes, timeout_s=PULL_S)
