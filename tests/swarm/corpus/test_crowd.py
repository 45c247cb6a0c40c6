"""Many machines download a corpus from one peer with a low upload limit, which may be away for a while."""

from __future__ import annotations

import asyncio
import hashlib
import random
from pathlib import Path

import pytest

from outerloop.swarm.corpus import index as index_file
from outerloop.swarm.corpus.download import FindPeers, fetch_shards
from outerloop.swarm.corpus.folder import CorpusFolder
from outerloop.swarm.corpus.index import CorpusIndex
from outerloop.swarm.corpus.service import UPLOAD_SHARE, CorpusService
from outerloop.swarm.timeouts import PULL_S
from outerloop.swarm.transfer.sources import ContentUnavailable
from outerloop.swarm.transfer.uploads import RateLimiter
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import now_s, virtual

SHARD_BYTES = 1 << 20
"""Size of a shard in this test, so that little has to be sent."""
COUNT = 8
UPLOAD_BYTES_S = 100_000.0
"""Upload limit of the first peer. It sends two shards at once, each in about 40 s."""


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_file, "SHARD_BYTES", SHARD_BYTES)


class Corpus(CorpusFolder):
    """A corpus in memory: with all of its shards, or with none of them."""

    def __init__(self, *, whole: bool) -> None:
        shards = [random.Random(seed).randbytes(64) * (SHARD_BYTES // 64) for seed in range(COUNT)]
        self.shards = {hashlib.sha256(shard).digest(): shard for shard in shards}
        tokens = COUNT * SHARD_BYTES
        super().__init__(
            Path("corpus"),
            CorpusIndex(
                name="books",
                vocab_size=256,
                tokenizer="bytes",
                train_tokens=tokens - 1,
                val_tokens=1,
                shards=tuple(self.shards),
            ),
        )
        self.held = dict(self.shards) if whole else {}

    def get(self, sha: bytes) -> bytes | None:
        return self.held.get(sha)

    def holds(self, sha: bytes) -> bool:
        return sha in self.held

    def write(self, sha: bytes, content: bytes) -> None:
        self.held[sha] = content


async def serve(network: MemoryNetwork, name: str, corpus: Corpus, limiter: RateLimiter) -> CorpusService:
    """A peer that counts none of the others as a member."""
    transport = MemoryTransport(network, name)
    transport.member = lambda peer_id: False
    service = CorpusService(transport, corpus, run="r", limiter=limiter)
    await service.serve()
    return service


async def get(
    network: MemoryNetwork, name: str, find_peers: FindPeers | None = None, *, after_s: float = 0.0
) -> Corpus:
    """The corpus as a machine has it that knows only the first peer."""
    await asyncio.sleep(after_s)
    corpus, transport = Corpus(whole=False), MemoryTransport(network, name)
    await fetch_shards(transport, corpus, ["h"], run="r", progress=lambda *_: None, find_peers=find_peers)
    return corpus


@virtual
async def test_12_machines_get_a_corpus_from_one_peer_with_a_low_upload_limit() -> None:
    network = MemoryNetwork()
    await serve(network, "h", Corpus(whole=True), RateLimiter(UPLOAD_BYTES_S))
    got = await asyncio.gather(*(get(network, f"n{number}", after_s=number / 2) for number in range(12)))
    assert all(corpus.held == corpus.shards for corpus in got)


@virtual
async def test_peers_that_have_the_corpus_later_are_asked_as_well() -> None:
    network, names = MemoryNetwork(), ["h"]
    first = await serve(network, "h", Corpus(whole=True), RateLimiter(UPLOAD_BYTES_S))

    async def find_peers() -> list[str]:
        return names

    getting = asyncio.create_task(get(network, "a", find_peers))
    await asyncio.sleep(10)
    await serve(network, "b", Corpus(whole=True), RateLimiter(None))
    names.append("b")
    corpus = await getting
    assert corpus.held == corpus.shards and first.bulk.bytes_sent < 0.8 * COUNT * SHARD_BYTES
    assert now_s() < 0.8 * COUNT * SHARD_BYTES / (UPLOAD_SHARE * UPLOAD_BYTES_S)


@virtual
async def test_a_download_outlives_a_peer_that_is_away_for_half_a_minute() -> None:
    network = MemoryNetwork()
    await serve(network, "h", Corpus(whole=True), RateLimiter(UPLOAD_BYTES_S))
    getting = asyncio.create_task(get(network, "a"))
    await asyncio.sleep(50)
    network.kill("h")
    await asyncio.sleep(30)
    network.cut.discard("h")
    corpus = await getting
    assert corpus.held == corpus.shards


@virtual
async def test_a_download_ends_once_nothing_has_arrived_for_long(caplog: pytest.LogCaptureFixture) -> None:
    network = MemoryNetwork()
    await serve(network, "h", Corpus(whole=True), RateLimiter(UPLOAD_BYTES_S))
    getting = asyncio.create_task(get(network, "a"))
    await asyncio.sleep(50)
    network.kill("h")
    with pytest.raises(ContentUnavailable, match="h is gone"):
        await getting
    assert 50 + PULL_S - 10 < now_s() < 50 + PULL_S + 30
    assert "it is requested again" in caplog.text and len(caplog.records) < 30
