"""A corpus arrives whole from several peers, resumes, and no liar makes a machine store or read what it should not."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from outerloop.swarm.corpus.download import fetch_index, fetch_shards
from outerloop.swarm.corpus.folder import CorpusFolder
from outerloop.swarm.corpus.index import MAX_INDEX_BYTES, SHARD_BYTES
from outerloop.swarm.corpus.service import UPLOAD_SHARE
from outerloop.swarm.p2p.framing import END_MARK, PIECE_BYTES, Stream
from outerloop.swarm.p2p.transport import Request, anybody
from outerloop.swarm.timeouts import INDEX_S
from outerloop.swarm.transfer.sources import ContentUnavailable
from outerloop.swarm.transfer.uploads import RateLimiter
from tests.support.swarm.corpus_scene import INDEX, SHA256, SHARDS, empty, filled, served
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import now_s, virtual

INDEX_PROTOCOL, SHARD_PROTOCOL = "outerloop/1/r/corpus", "outerloop/1/r/corpus/bulk"


def ignore(received: int, size: int) -> None:
    pass


async def get(network: MemoryNetwork, folder: CorpusFolder, peers: list[str], progress: Any = ignore) -> None:
    await fetch_shards(MemoryTransport(network, "a"), folder, peers, run="r", progress=progress)


async def index(network: MemoryNetwork, peers: list[str]) -> Any:
    return await fetch_index(MemoryTransport(network, "a"), SHA256, peers, run="r")


async def shard_liar(network: MemoryNetwork, name: str, *, length: int, content: bytes) -> list[Request]:
    """A peer that announces this length and sends this content, whatever it is asked for."""
    asked: list[Request] = []

    async def give(remote: str, request: Request, stream: Stream) -> None:
        asked.append(request)
        await stream.send_object({"length": length})
        await stream.write(content[request["offset"] :] + END_MARK)
        await stream.ended()

    await MemoryTransport(network, name).serve(SHARD_PROTOCOL, allowed=lambda peer_id: True, handler=give)
    return asked


@virtual
async def test_a_corpus_arrives_from_two_peers(tmp_path: Path) -> None:
    network, seen = MemoryNetwork(), [(0, INDEX.size_bytes)]
    services = [await served(network, name, filled(tmp_path / name)) for name in "bc"]
    assert await index(network, ["x", "b"]) == INDEX
    folder = empty(tmp_path / "a")
    await get(network, folder, ["b", "c"], lambda *counts: seen.append(counts))
    assert not folder.missing() and [folder.file(sha).read_bytes() for sha in INDEX.shards] == SHARDS
    assert all(service.bulk.bytes_sent for service in services), "each peer sends a part"
    assert sum(service.bulk.bytes_sent for service in services) == INDEX.size_bytes
    assert seen == sorted(seen) and seen[-1] == (INDEX.size_bytes, INDEX.size_bytes)


@virtual
async def test_shards_on_disk_are_not_sent_again_and_a_broken_stream_is_resumed(tmp_path: Path) -> None:
    network, seen = MemoryNetwork(), list[int]()
    giver = await served(network, "b", filled(tmp_path / "b"))
    folder = empty(tmp_path / "a")
    folder.write(INDEX.shards[0], SHARDS[0])
    network.breaks.append(PIECE_BYTES)
    await get(network, folder, ["b"], lambda received, size: seen.append(received))
    assert not folder.missing() and min(seen) > SHARD_BYTES
    assert giver.bulk.bytes_sent < 2 * SHARD_BYTES


@virtual
async def test_a_peer_that_lacks_a_shard_ends_the_download_which_then_continues(tmp_path: Path) -> None:
    network = MemoryNetwork()
    partial = filled(tmp_path / "b")
    partial.file(INDEX.shards[1]).unlink()
    await served(network, "b", partial)
    folder = empty(tmp_path / "a")
    with pytest.raises(ContentUnavailable, match="b does not have it"):
        await get(network, folder, ["b"])
    partial.write(INDEX.shards[1], SHARDS[1])
    await get(network, folder, ["b"])
    assert not folder.missing()


@pytest.mark.parametrize(
    ("length", "content"),
    [(SHARD_BYTES, bytes(SHARD_BYTES)), (SHARD_BYTES + 1, bytes(SHARD_BYTES + 1)), (1 << 60, bytes(10))],
)
@virtual
async def test_wrong_bytes_and_wrong_lengths_are_not_stored(length: int, content: bytes, tmp_path: Path) -> None:
    network = MemoryNetwork()
    asked = await shard_liar(network, "liar", length=length, content=content)
    folder = empty(tmp_path / "a")
    with pytest.raises(ContentUnavailable, match=r"liar (sent wrong bytes|has it with another length)"):
        await get(network, folder, ["liar"])
    assert asked and len(folder.missing()) == 3 and sorted(x.name for x in folder.path.iterdir()) == [".lock", "index"]
    await served(network, "b", filled(tmp_path / "b"))
    await get(network, folder, ["liar", "b"])
    assert not folder.missing()


@pytest.mark.parametrize("answer", ["other", "endless", "slow", "none"])
@virtual
async def test_an_index_that_is_not_the_one_is_refused(answer: str, tmp_path: Path) -> None:
    network, sent = MemoryNetwork(), [0]

    async def lie(remote: str, request: Request, stream: Stream) -> None:
        if answer == "other":
            await stream.send(INDEX.to_bytes() + b"x")
        elif answer == "endless":
            await stream.write((1 << 40).to_bytes(8, "big") + bytes(32))
            while True:
                await stream.write(bytes(PIECE_BYTES))
                sent[0] += PIECE_BYTES
        elif answer == "slow":
            await stream.write(MAX_INDEX_BYTES.to_bytes(8, "big") + bytes(32))
            while True:
                await stream.write(b"x")
                await asyncio.sleep(1.0)
        await stream.ended()

    await MemoryTransport(network, "liar").serve(INDEX_PROTOCOL, allowed=anybody, handler=lie)
    begun_s = now_s()
    with pytest.raises(ContentUnavailable, match="liar: "):
        await index(network, ["liar"])
    assert now_s() - begun_s <= INDEX_S + 1 and sent[0] <= 4 * MAX_INDEX_BYTES
    await served(network, "b", filled(tmp_path / "b"))
    assert await index(network, ["liar", "b"]) == INDEX


@virtual
async def test_uploads_take_a_share_of_the_upload_limit(tmp_path: Path) -> None:
    network, limiter = MemoryNetwork(), RateLimiter(1e6)
    await served(network, "b", filled(tmp_path / "b"), limiter=limiter)
    begun_s = now_s()
    await get(network, empty(tmp_path / "a"), ["b"])
    expected_s = INDEX.size_bytes / (UPLOAD_SHARE * 1e6)
    assert expected_s - 1 < now_s() - begun_s < 1.1 * expected_s


@virtual
async def test_the_bytes_of_a_part_count_towards_the_whole_limit() -> None:
    whole = RateLimiter(1e6)
    part = whole.part(0.5)
    for _ in range(4):
        await part.take(1_000_000)
    assert now_s() >= 6 and part.bytes_per_s == 5e5 and RateLimiter(None).part(0.5).bytes_per_s is None
    begun_s = now_s()
    await whole.take(1)
    assert now_s() - begun_s >= 0.9, "the last megabyte of the part"


@virtual
async def test_a_disk_that_fills_up_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, failures = MemoryNetwork(), [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))]
    write = CorpusFolder.write

    def once_full(self: CorpusFolder, sha: bytes, content: bytes) -> None:
        if failures:
            raise failures.pop()
        write(self, sha, content)

    folder = empty(tmp_path / "a")
    await served(network, "b", filled(tmp_path / "b"))
    monkeypatch.setattr(CorpusFolder, "write", once_full)
    await get(network, folder, ["b"])
    assert not failures and not folder.missing()
