"""Download payloads into the store, each once, from its owner or any other peer that holds it.

A payload that is too large is not requested, and one that its owner did not sign for the round is not stored. Both
are rejected, logged with the owner's name and not requested again. An honest owner has one payload per round. If an
owner signs more, PAYLOADS_KEPT of them are downloaded and stored, and beyond that only one that a commit names.

A leader can propose hashes of contents that no peer has. So a download that only a proposal asked for is dropped after
the view. It continues through the next view first, because that view may propose the same payload again.
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
"""Maximum number of payloads stored per peer and round. An honest peer has one. Two dishonest leaders of successive
views can each attribute another one to it. A payload that a commit names is stored in addition."""


@dataclass
class _Pull:
    """A running download. `views_left`: how many more views it outlives.

    It is None, for no limit, if the owner itself offers the payload or a commit names it.
    """

    task: asyncio.Task[None]
    holders: list[str]
    views_left: int | None


class PayloadDownloads:
    """The running payload downloads of one peer.

    Args:
        session: returns the id of the session for which owners must have signed their payloads.
        max_bytes: largest payload allowed, with its signature.
        held: called with round and participant when a payload has been stored.
    """

    def __init__(
        self,
        bulk: Bulk,
        store: RoundStore,
        trust: AccessControl,
        *,
        session: Callable[[], str],
        max_bytes: int,
        held: Callable[[int, Participant], None],
    ) -> None:
        self._bulk = bulk
        self._store = store
        self._trust = trust
        self._session = session
        self._max_bytes = max_bytes
        self._held = held
        self._refused: set[Key] = set()  # rejected; each was downloaded, or too large to be requested
        self._running: dict[Key, _Pull] = {}

    def start(
        self, number: int, one: Participant, holders: Iterable[str], *, decided: bool = False, proposed: bool = False
    ) -> asyncio.Task[None]:
        """Download a payload from these peers, in addition to the sources of a download that is already running.

        Return its task, which ends when the payload is stored or cannot be. `decided`: a commit names the payload, so
        it is stored however many its owner has offered. `proposed`: only a proposal of the current view names it.
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
        """Return whether this payload was rejected: the reason holds for any source."""
        return (number, one) in self._refused

    def refuse(self, peer: str, reason: str) -> None:
        """Log and count that a payload offered by a peer is rejected."""
        self._trust.refusals.note("payloads", peer, reason)

    def drop_all_but(self, number: int, needed: Iterable[Participant]) -> None:
        """Drop all downloads of a decided round except the `needed` payloads."""
        self._refused = {key for key in self._refused if key[0] > number - ROUNDS_KEPT}
        for (of, one), pull in list(self._running.items()):
            if of == number and one in needed:
                pull.views_left = None
            elif of == number:
                self._drop((of, one))

    def next_view(self) -> None:
        """Begin another view. Drop downloads that only a proposal asked for and the last view did not propose again."""
        for key, pull in list(self._running.items()):
            if pull.views_left == 0:
                self._drop(key)
            elif pull.views_left is not None:
                pull.views_left -= 1

    def _drop(self, key: Key) -> None:
        """Stop a download. A later `start` begins a new one."""
        self._running.pop(key).task.cancel()

    async def _pull(self, number: int, one: Participant, holders: list[str], decided: bool) -> None:
        try:
            if (number, one) not in self._store and not self.refused(number, one):
                await self._take(number, one, holders, decided)
        except ContentUnavailable as error:
            logger.warning("round %d: the payload of %s could not be downloaded: %s", number, one.peer, error)
        finally:
            pull = self._running.get((number, one))
            if pull and pull.task is asyncio.current_task():
                del self._running[number, one]

    async def _take(self, number: int, one: Participant, holders: list[str], decided: bool) -> None:
        """Download a payload, check it and store it, or reject it. Raises ContentUnavailable."""
        if not decided and self._too_many(number, one):
            self.refuse(one.peer, f"round {number}: {PAYLOADS_KEPT} other payloads of it are stored or downloading")
            return
        content, reason = b"", f"a payload of {one.size_bytes} bytes, up to {self._max_bytes} are allowed"
        if one.size_bytes <= self._max_bytes:
            content = await self._get(one, holders)
            signatures, session = self._trust.signatures, self._session()
            reason = await doubt(content, signatures, session=session, number=number, peer=one.peer, state=one.state)
        if reason:
            self._refused.add((number, one))
            self.refuse(one.peer, reason)
            return
        await self._store.put(number, one, content)
        self._held(number, one)

    def _too_many(self, number: int, one: Participant) -> bool:
        """Return whether PAYLOADS_KEPT others of its owner are stored, or their downloads were started before it."""
        begun_before = takewhile(lambda key: key != (number, one), self._running)
        others = {*self._store.since(number), *begun_before}
        return sum(of == number and id_of(known.peer) == id_of(one.peer) for of, known in others) >= PAYLOADS_KEPT

    async def _get(self, one: Participant, holders: list[str]) -> bytes:
        return await self._bulk.get(one.digest, one.size_bytes, holders, at_most=self._max_bytes, timeout_s=PULL_S)
