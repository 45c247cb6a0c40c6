"""Download a corpus: its index from the first peer that has it, and its shards in parallel from all peers.

Many machines may download from one peer, which sends each of them a part of every shard that it requests
(upload_slots.py). So a machine requests at most SHARDS_PER_SOURCE shards from a peer at once: with more, none would be
complete in time. Peers that get the corpus meanwhile are asked as well.

A shard that no peer has sent, e.g. because the connection broke for a minute, is requested again. The download fails
once nothing has arrived for PULL_S.

All content is checked against its hash. Shards that are on disk are not downloaded again, so an interrupted download
resumes where it stopped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from outerloop.swarm.corpus.folder import CorpusFolder, Progress, verified_index
from outerloop.swarm.corpus.index import MAX_INDEX_BYTES, SHARD_BYTES, CorpusIndex
from outerloop.swarm.corpus.service import CorpusService, shards_of
from outerloop.swarm.p2p.framing import BrokenStream
from outerloop.swarm.p2p.transport import Transport, Unreachable, protocol_name
from outerloop.swarm.resource_exhaustion import EXHAUSTION, QUIET_S
from outerloop.swarm.timeouts import INDEX_S, PULL_S, SHARD_RETRY_S, SOURCES_S, limit
from outerloop.swarm.transfer.bulk import Bulk
from outerloop.swarm.transfer.content_store import EmptyStore
from outerloop.swarm.transfer.download_slots import TRANSFERS_AT_ONCE
from outerloop.swarm.transfer.sources import ContentUnavailable
from outerloop.swarm.validation import MalformedMessage

logger = logging.getLogger(__name__)
SHARDS_PER_SOURCE = 2
"""Maximum number of shards requested from one peer at once: while one is written to disk, another can arrive."""
FindPeers = Callable[[], Awaitable[Sequence[str]]]
"""Returns the ids of the peers that may have the corpus now."""


async def fetch_index(transport: Transport, sha256: str, peers: Sequence[str], *, run: str) -> CorpusIndex:
    """Return the index with this sha256 (hexadecimal) from the first of the peers (ids) that sends it.

    Raises ContentUnavailable, with the reason for each peer, if none does.
    """
    reasons = []
    for peer in peers:
        try:
            async with limit(INDEX_S), transport.open_stream(peer, protocol_name(run, CorpusService.service)) as stream:
                await stream.send_object({})
                return verified_index(await stream.receive(at_most=MAX_INDEX_BYTES), sha256)
        except (BrokenStream, Unreachable, TimeoutError, MalformedMessage) as error:
            reasons.append(f"{peer}: {error or 'no answer in time'}")
    raise ContentUnavailable("; ".join(reasons) or "no peer is known")


async def fetch_shards(
    transport: Transport,
    folder: CorpusFolder,
    peers: Sequence[str],
    *,
    run: str,
    progress: Progress,
    find_peers: FindPeers | None = None,
) -> None:
    """Download the shards that are not in the folder from the peers (ids).

    `progress` is called with the number of bytes that are in the folder or have been received, and the size of the
    corpus in bytes. `find_peers` is called every SOURCES_S, and the peers that it returns are asked as well; None: only
    `peers` are asked. Raises ContentUnavailable if a shard is missing and nothing has arrived for PULL_S.
    """
    download = _ShardDownload(transport, folder, peers, run=run, progress=progress)
    finding = asyncio.create_task(download.add_peers(find_peers)) if find_peers else None
    try:
        await download.run()
    finally:
        if finding is not None:
            finding.cancel()


class _ShardDownload:
    """Downloads the missing shards of one corpus.

    At most SHARDS_PER_SOURCE shards are requested at once for each peer that has sent one, and TRANSFERS_AT_ONCE in
    total.
    """

    def __init__(
        self, transport: Transport, folder: CorpusFolder, peers: Sequence[str], *, run: str, progress: Progress
    ) -> None:
        self._folder, self._peers, self._progress = folder, list(peers), progress
        self._bulk = Bulk(
            transport,
            EmptyStore(),
            run=shards_of(run),
            allowed=lambda peer_id: False,
            max_per_source=SHARDS_PER_SOURCE,
        )
        self._at_once = SHARDS_PER_SOURCE
        self._turns = asyncio.Semaphore(self._at_once)
        self._missing = folder.missing()
        self._size = sum(folder.index.lengths().values())
        self._held = self._size - sum(self._missing.values())
        self._arrived: dict[bytes, int] = {}
        self._heard_s, self._noted_s = _now_s(), -QUIET_S

    async def run(self) -> None:
        tasks = [asyncio.create_task(self._fetch(number, sha)) for number, sha in enumerate(self._missing)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def add_peers(self, find_peers: FindPeers) -> None:
        """Every SOURCES_S, add the peers that `find_peers` returns to the sources of further shards."""
        while True:
            await asyncio.sleep(SOURCES_S)
            self._peers += [peer for peer in await find_peers() if peer not in self._peers]

    async def _fetch(self, number: int, sha: bytes) -> None:
        """Download one shard, and try again until nothing has arrived for PULL_S."""
        while True:
            try:
                async with self._turns:
                    await self._ask(number, sha)
                return self._add_turns()
            except ContentUnavailable as error:
                if _now_s() - self._heard_s >= PULL_S:
                    raise
                self._note(error)
            await asyncio.sleep(SHARD_RETRY_S)

    async def _ask(self, number: int, sha: bytes) -> None:
        """Download one shard and store it. Consecutive shards are requested from different peers first."""
        first = number % max(1, len(self._peers))
        content = await self._bulk.get(
            sha,
            self._missing[sha],
            self._peers[first:] + self._peers[:first],
            at_most=SHARD_BYTES,
            timeout_s=PULL_S,
            progress=lambda arrived, length: self._count(sha, arrived),
        )
        await EXHAUSTION.wait_out(
            lambda: asyncio.to_thread(self._folder.write, sha, content), where=str(self._folder.path)
        )

    def _note(self, error: ContentUnavailable) -> None:
        """Log that a shard did not arrive, but at most once per QUIET_S."""
        if _now_s() - self._noted_s >= QUIET_S:
            self._noted_s = _now_s()
            logger.warning("a part of the corpus did not arrive (%s): it is requested again", error)

    def _add_turns(self) -> None:
        """Request more shards at once if another peer has sent its first one."""
        allowed = min(TRANSFERS_AT_ONCE, SHARDS_PER_SOURCE * len(self._bulk.reputation.delivered))
        while self._at_once < allowed:
            self._at_once += 1
            self._turns.release()

    def _count(self, sha: bytes, arrived: int) -> None:
        self._heard_s = _now_s()
        self._arrived[sha] = arrived
        self._progress(self._held + sum(self._arrived.values()), self._size)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
