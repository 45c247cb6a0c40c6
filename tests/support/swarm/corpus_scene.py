"""A small corpus on disk, and peers in memory that serve it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from outerloop.swarm.corpus.folder import CorpusFolder
from outerloop.swarm.corpus.index import SHARD_BYTES, CorpusIndex
from outerloop.swarm.corpus.service import CorpusService
from outerloop.swarm.transfer.uploads import RateLimiter
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport

SHARDS = [np.random.default_rng(seed).bytes(SHARD_BYTES) for seed in range(2)] + [bytes(range(100))]
INDEX = CorpusIndex(
    name="books",
    vocab_size=256,
    tokenizer="bytes",
    train_tokens=2 * SHARD_BYTES,
    val_tokens=100,
    shards=tuple(hashlib.sha256(shard).digest() for shard in SHARDS),
)
SHA256 = INDEX.sha.hex()


def empty(root: Path) -> CorpusFolder:
    return CorpusFolder.create(root / SHA256, INDEX)


def filled(root: Path) -> CorpusFolder:
    folder = empty(root)
    for sha, shard in zip(INDEX.shards, SHARDS, strict=True):
        folder.write(sha, shard)
    return folder


async def served(
    network: MemoryNetwork, name: str, folder: CorpusFolder, *, limiter: RateLimiter | None = None
) -> CorpusService:
    service = CorpusService(MemoryTransport(network, name), folder, run="r", limiter=limiter or RateLimiter(None))
    await service.serve()
    return service
