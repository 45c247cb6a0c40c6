"""Download a state: first its manifest, then its chunks, in parallel from all donors that offer this state.

    more than half of all donors offer one state   ->   download that state without waiting until it is certified
    otherwise                                      ->   wait until a state is certified (state_roots.py); download it

Chunks are kept on disk until all have arrived, so an interrupted download resumes where it stopped if the state is
still the same.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence

from outerloop.swarm.p2p.framing import BrokenStream
from outerloop.swarm.p2p.transport import Transport, Unreachable
from outerloop.swarm.state_transfer.donor import content_of, protocol_of
from outerloop.swarm.state_transfer.manifest import CONTEXT, Manifest, cut, max_bytes
from outerloop.swarm.storage import Disk
from outerloop.swarm.timeouts import CHUNK_S, DONATE_S, LATE_OFFER_S, PULL_S, limit
from outerloop.swarm.transfer.bulk import Bulk
from outerloop.swarm.transfer.content_store import EmptyStore
from outerloop.swarm.transfer.download_slots import TRANSFERS_AT_ONCE
from outerloop.swarm.transfer.sources import ContentUnavailable
from outerloop.swarm.validation import MalformedMessage, checked_int, digest

logger = logging.getLogger(__name__)
Progress = Callable[[int, int], None]
Named = tuple[bytes, int]
"""A manifest's sha256 and size in bytes, which identify a state."""
Offer = tuple[Named, str]
"""A manifest, and the donor that offers it."""


class Download:
    """Downloads states. `session`: returns the session id that donors sign.

    `disk`: store for the chunks of unfinished downloads. All other content in it is deleted.
    """

    def __init__(self, transport: Transport, *, run: str, session: Callable[[], str], disk: Disk) -> None:
        self._transport = transport
        self._protocol = protocol_of(run)
        self._session = session
        self._disk = disk
        self.bulk = Bulk(
            transport,
            EmptyStore(),
            run=content_of(run),
            allowed=lambda peer_id: False,
            max_per_source=TRANSFERS_AT_ONCE,  # chunks are small, and there may be only one donor
        )

    async def get(
        self,
        number: int,
        donors: Sequence[str],
        progress: Progress,
        *,
        at_most: int,
        certified: Callable[[], Awaitable[bytes]] | None = None,
    ) -> tuple[Manifest, bytes]:
        """Download the state as of commit `number` from the donors that offer it. Return its manifest and content.

        `donors` are peer ids. The content has at most `at_most` bytes. `progress` is called with the number of bytes
        received and the size of the state. `certified` waits until a manifest is certified, and returns its sha256. If
        more than half of the donors offer the same state, `certified` is not called, so the caller must compare the
        result with the certified manifest. If `certified` is None, more than half of the donors must offer the same
        state.

        Raises ContentUnavailable if the donors do not deliver the state, and MalformedMessage if its manifest is
        malformed.
        """
        offers = _offers(await self._answers(number, donors, at_most=max_bytes(at_most)))
        if len(offers) > 1:
            logger.warning("the donors offer different states: %s", sorted(offers.values(), key=len))
        named = _named_by_most(offers, len(donors))
        if named is None and certified is not None and offers:
            sha = await certified()
            named = next((manifest for manifest in offers if manifest[0] == sha), None)
        if named is None:
            count = max(map(len, offers.values()), default=0)
            raise ContentUnavailable(f"{count} of {len(donors)} peers offer the same state; more than half are needed")
        (sha, length), holders = named, offers[named]
        packed = await self.bulk.get(sha, length, holders, at_most=max_bytes(at_most), timeout_s=PULL_S)
        manifest = Manifest.from_bytes(packed)
        if manifest.number != number or manifest.size_bytes > at_most:
            raise ContentUnavailable(
                "the offered state is too large or for another commit:"
                f" {manifest.size_bytes} bytes, commit {manifest.number}"
            )
        return manifest, await self._chunks(manifest, holders, progress)

    async def _answers(self, number: int, donors: Sequence[str], *, at_most: int) -> list[Offer | None]:
        """Ask all donors for the manifest of the state. Return the answers that arrive in time.

        Once more than half of the donors offer the same state, wait for at most LATE_OFFER_S for each further answer.
        """
        asking = {asyncio.create_task(self._ask(donor, number, at_most)) for donor in donors}
        answers: list[Offer | None] = []
        patience_s: float | None = None
        try:
            while asking:
                done, asking = await asyncio.wait(asking, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                answers += [task.result() for task in done]
                if _named_by_most(_offers(answers), len(donors)):
                    patience_s = LATE_OFFER_S
        finally:
            for task in asking:
                task.cancel()
        return answers

    async def _ask(self, donor: str, number: int, at_most: int) -> Offer | None:
        """Return the manifest that a donor offers, and the donor, or None if it offers no valid manifest."""
        try:
            async with limit(DONATE_S), self._transport.open_stream(donor, self._protocol) as stream:
                await stream.send_object({"number": number})
                answer = await stream.receive_object(patience_s=DONATE_S)
            if answer == {}:
                logger.info("%s does not have the state as of commit %d", donor, number)
                return None
            sha, length, signature = answer["manifest"]
            named = digest(sha, "a manifest"), checked_int(length, "a manifest's size", maximum=at_most)
            return (named, donor) if self._signed(donor, number, named, signature) else None
        except (BrokenStream, Unreachable, TimeoutError, MalformedMessage, KeyError, TypeError, ValueError) as error:
            logger.warning("%s offers no state as of commit %d: %r", donor, number, error)
            return None

    def _signed(self, donor: str, number: int, named: Named, signature: object) -> bool:
        """Return whether the donor has signed the manifest that it offers. If not, log the rejection."""
        trust = self._transport.trust
        valid = trust.signatures.verify(signature, CONTEXT, self._session(), number, *named, by=donor)
        if not valid:
            trust.rejections.note("manifests", donor, f"offers a state as of commit {number} without a valid signature")
        return valid

    async def _chunks(self, manifest: Manifest, holders: list[str], progress: Progress) -> bytes:
        """Download all chunks and return the whole state. Equal chunks, e.g. of zeros, are downloaded only once."""
        kept, places_of, turns = self._keep_only(manifest), manifest.places(), asyncio.Semaphore(TRANSFERS_AT_ONCE)
        received: defaultdict[bytes, int] = defaultdict(int)  # sha256 of a chunk -> bytes received, times its places
        total = 0
        content = io.BytesIO(bytes(manifest.size_bytes))  # memory is used only as it fills; getvalue() does not copy
        chunks = cut(content.getbuffer())

        def arrived(sha: bytes, amount: int) -> None:
            nonlocal total
            if more := amount * len(places_of[sha]) - received[sha]:
                received[sha] += more
                total += more
                progress(total, manifest.size_bytes)

        async def download(sha: bytes, places: list[int]) -> None:
            chunk, first = chunks[places[0]], places[0] % len(holders)  # each chunk starts with a different source
            async with turns:  # no download waits for a slot, because that would end the turn of a slow download
                if sha.hex() not in kept or not self._read(sha, chunk):
                    sources = holders[first:] + holders[:first]
                    await self._fetch(sha, chunk, sources, lambda amount, _: arrived(sha, amount))
            for place in places[1:]:
                chunks[place][:] = chunk
            arrived(sha, len(chunk))

        tasks = [asyncio.create_task(download(sha, places)) for sha, places in places_of.items()]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        for name in self._disk.names():
            self._disk.remove(name)
        for chunk in chunks:
            chunk.release()  # no task writes to it any more
        return content.getvalue()

    def _read(self, sha: bytes, chunk: memoryview) -> bool:
        """Read the chunk with this sha256 from disk into `chunk`. Return False if the chunk on disk is damaged."""
        found = bytes(self._disk.read(sha.hex()))
        if valid := len(found) == len(chunk) and hashlib.sha256(found).digest() == sha:
            chunk[:] = found
        return valid

    async def _fetch(self, sha: bytes, chunk: memoryview, holders: list[str], progress: Progress) -> None:
        await self.bulk.fill(chunk, sha, holders, timeout_s=CHUNK_S, progress=progress)
        await self._disk.write(sha.hex(), chunk)

    def _keep_only(self, manifest: Manifest) -> set[str]:
        """Delete the chunks of other states from disk. Return the names of this state's chunks on disk."""
        held = set(self._disk.names())
        needed = {sha.hex() for sha in manifest.chunks}
        for name in held - needed:
            self._disk.remove(name)
        return held & needed


def _offers(answers: Sequence[Offer | None]) -> dict[Named, list[str]]:
    """Return a mapping from manifest to donors that offer it."""
    donors: defaultdict[Named, list[str]] = defaultdict(list)
    for answer in answers:
        if answer is not None:
            donors[answer[0]].append(answer[1])
    return dict(donors)


def _named_by_most(offers: Mapping[Named, Sequence[str]], donors: int) -> Named | None:
    """Return the manifest offered by more than half of the donors, or None. `donors`: number of donors asked."""
    return next((named for named, holders in offers.items() if 2 * len(holders) > donors), None)
