"""Download each payload once, from its owner or any other peer that holds it, and store it on disk.

A payload that is too large is not requested, and a payload that its owner did not sign for the round is not stored.
Both are rejected, logged with the owner's name and not requested again. An honest owner has one payload per round. If
an owner signs more, at most PAYLOADS_KEPT of them are stored, plus any that a commit names.

A leader can propose hashes of content that no peer has. So a download that only a proposal needs is dropped if the next
view does not propose the same payload again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

from outerloop.swarm.consensus.commit import Participant
from outerloop.swarm.consensus.state import ROUNDS_KEPT
from outerloop.swarm.gather.round_context import RoundContext
from outerloop.swarm.gather.round_store import RoundStore
from outerloop.swarm.timeouts import PULL_S
from outerloop.swarm.transfer.bulk import Bulk
from outerloop.swarm.transfer.signed_payload import payload_error
from outerloop.swarm.transfer.sources import ContentUnavailable
from outerloop.swarm.validation import id_of

logger = logging.getLogger(__name__)
Key = tuple[int, Participant]
PAYLOADS_KEPT = 4
"""Maximum number of payloads stored per peer and round. An honest peer has one payload, and two dishonest leaders of
successive views can each attribute one more to it. A payload that a commit names is stored regardless of this limit."""


@dataclass
class _Download:
    """A running download.

    views_left    number of further views before the download is dropped, or None if it is never dropped, because the
                  owner itself offered the payload or a commit names it
    """

    task: asyncio.Task[None]
    sources: list[str]
    views_left: int | None


class PayloadDownloads:
    """The payload downloads of one peer. `max_bytes`: maximum size of a payload, including its signature."""

    def __init__(self, context: RoundContext, bulk: Bulk, store: RoundStore, *, max_bytes: int) -> None:
        self._context, self._bulk, self._store = context, bulk, store
        self._max_bytes = max_bytes
        self._rejected: set[Key] = set()  # bad content, or too large to be requested
        self.running: dict[Key, _Download] = {}

    def start(
        self,
        number: int,
        participant: Participant,
        sources: Iterable[str],
        *,
        decided: bool = False,
        proposed: bool = False,
    ) -> asyncio.Task[None]:
        """Start to download a payload from `sources`, or add them to the sources of its running download.

        Return the download task, which ends when the payload is stored or the download has failed. `decided`: whether a
        commit names the payload, so that it is stored regardless of how many payloads its owner has offered.
        `proposed`: whether only a proposal of the current view names it.
        """
        key = number, participant
        download = self.running.get(key)
        if download is None:
            names: list[str] = []
            task = asyncio.create_task(self._run(key, names, decided))
            download = self.running[key] = _Download(task, names, 1 if proposed else None)
        elif download.views_left is not None:
            download.views_left = 1 if proposed else None
        download.sources += [peer for peer in dict.fromkeys(map(id_of, sources)) if peer not in download.sources]
        return download.task

    def is_stored(self, number: int, participant: Participant) -> bool:
        """Return whether this payload is on disk."""
        return (number, participant) in self._store

    def has_wrong_hash(self, participant: Participant) -> bool:
        """Return whether the owner of this payload sent bytes that do not match the hash it had announced."""
        return self._bulk.reputation.sent_wrong_bytes(id_of(participant.peer), participant.digest)

    def is_rejected(self, number: int, participant: Participant) -> bool:
        """Return whether this payload was rejected for a reason that does not depend on the peer that sent it."""
        return (number, participant) in self._rejected

    def log_rejection(self, number: int, peer: str, reason: str) -> None:
        """Log and count the rejection of a payload that `peer` offered for round `number`."""
        self._context.trust.rejections.note("payloads", peer, f"{self._context.round_of(number)}: {reason}")

    def drop_all_but(self, number: int, needed: Iterable[Participant]) -> None:
        """Drop all downloads for decided round `number`, except those of the `needed` payloads."""
        self._rejected = {key for key in self._rejected if key[0] > number - ROUNDS_KEPT}
        needed = set(needed)
        for key, download in list(self.running.items()):
            if key[0] == number and key[1] in needed:
                download.views_left = None
            elif key[0] == number:
                self._drop(key)

    def begin_view(self) -> None:
        """Begin another view. Drop each download for a proposal that was not made in the view that just ended."""
        for key, download in list(self.running.items()):
            if download.views_left == 0:
                self._drop(key)
            elif download.views_left is not None:
                download.views_left -= 1

    def _drop(self, key: Key) -> None:
        """Cancel a download. A later call of `start` begins a new one."""
        self.running.pop(key).task.cancel()

    async def _run(self, key: Key, sources: list[str], decided: bool) -> None:
        number, participant = key
        try:
            if key not in self._store and key not in self._rejected:
                await self._fetch(key, sources, decided)
        except ContentUnavailable as error:
            round, peer = self._context.round_of(number), participant.peer
            logger.warning("%s: the payload of %s could not be downloaded: %s", round, peer, error)
        finally:
            download = self.running.get(key)
            if download and download.task is asyncio.current_task():
                del self.running[key]

    async def _fetch(self, key: Key, sources: list[str], decided: bool) -> None:
        """Download a payload, check it, and store or reject it. Raises ContentUnavailable if no source delivers it."""
        number, participant = key
        if not decided and self._too_many(key):
            reason = f"{PAYLOADS_KEPT} other payloads of this peer are stored or being downloaded"
            self.log_rejection(number, participant.peer, reason)
            return
        content, reason = b"", f"a payload of {participant.size_bytes} bytes; at most {self._max_bytes} are allowed"
        if participant.size_bytes <= self._max_bytes:
            content = await self._get_content(participant, sources)
            reason = await self._content_error(key, content)
        if reason:
            self._rejected.add(key)
            self.log_rejection(number, participant.peer, reason)
            return
        await self._store.put(number, participant, content)
        self._context.report_stored(number, participant)

    async def _content_error(self, key: Key, content: bytes) -> str:
        """Return why `content` is not the payload that its owner signed for the round, or "" if it is."""
        number, participant = key
        return await payload_error(
            content,
            self._context.trust.signatures,
            session=self._context.session,
            number=number,
            peer=participant.peer,
            state=participant.state,
        )

    def _too_many(self, key: Key) -> bool:
        """Return whether PAYLOADS_KEPT other payloads of this owner and round are stored or were requested earlier."""
        number, owner = key[0], id_of(key[1].peer)
        started_before = takewhile(lambda other: other != key, self.running)
        others = {*self._store.since(number), *started_before}
        return sum((of, id_of(other.peer)) == (number, owner) for of, other in others) >= PAYLOADS_KEPT

    async def _get_content(self, participant: Participant, sources: list[str]) -> bytes:
        digest, size = participant.digest, participant.size_bytes
        return await self._bulk.get(digest, size, sources, at_most=self._max_bytes, timeout_s=PULL_S)
