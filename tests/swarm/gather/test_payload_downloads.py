"""Payloads are fetched for as long as somebody wants them: a view, their owner's word, or the commit of a round."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from outerloop.swarm.consensus.commit import Participant
from outerloop.swarm.gather.payload_downloads import PayloadDownloads
from outerloop.swarm.gather.round_context import RoundContext
from outerloop.swarm.gather.round_store import RoundStore
from outerloop.swarm.storage import Folder
from outerloop.swarm.transfer.bulk import Bulk
from tests.support.swarm.memory_keys import trust_of

ONE, OTHER = Participant("000-a", b"1" * 32, 10), Participant("001-b", b"2" * 32, 10)


class Slow:
    """A Bulk from which nothing ever comes. `wanted`: sha256 -> whom it asks for that."""

    def __init__(self) -> None:
        self.wanted: dict[bytes, list[str]] = {}

    async def get(self, sha: bytes, length: int, holders: list[str], **options: Any) -> bytes:
        self.wanted[sha] = holders
        try:
            await asyncio.Event().wait()
        finally:
            del self.wanted[sha]
        raise AssertionError


class Peer:
    def __init__(self, folder: Path) -> None:
        self.bulk = Slow()
        context = SimpleNamespace(trust=trust_of("honest"), session="r", report_stored=lambda number, one: None)
        self.pulls = PayloadDownloads(
            cast(RoundContext, context), cast(Bulk, self.bulk), RoundStore(Folder(folder)), max_bytes=1000
        )

    async def start(self, one: Participant, holder: str, **why: bool) -> None:
        self.pulls.start(1, one, [holder], **why)
        await asyncio.sleep(0)

    async def next_view(self) -> set[bytes]:
        """What is still fetched in it."""
        self.pulls.begin_view()
        for _ in range(3):
            await asyncio.sleep(0)
        return set(self.bulk.wanted)


def test_a_payload_wanted_by_a_past_view_alone_is_fetched_for_one_more_view(tmp_path: Path) -> None:
    async def scene() -> None:
        peer = Peer(tmp_path)
        await peer.start(ONE, "000-a", proposed=True)
        assert await peer.next_view() == {ONE.digest}
        assert await peer.next_view() == set()
        await peer.start(ONE, "000-a", proposed=True)
        assert set(peer.bulk.wanted) == {ONE.digest}, "and may be wanted anew"

    asyncio.run(scene())


def test_a_download_wanted_by_the_next_view_too_continues_with_one_more_holder(tmp_path: Path) -> None:
    async def scene() -> None:
        peer = Peer(tmp_path)
        await peer.start(ONE, "000-a", proposed=True)
        for leader in ("001-b", "002-c", "003-d"):
            assert await peer.next_view() == {ONE.digest}
            await peer.start(ONE, leader, proposed=True)
        assert peer.bulk.wanted[ONE.digest] == list("abcd")

    asyncio.run(scene())


def test_a_download_offered_by_its_owner_or_committed_outlives_views(tmp_path: Path) -> None:
    async def scene() -> None:
        peer = Peer(tmp_path)
        for one, why in ((ONE, {}), (OTHER, {"decided": True})):
            await peer.start(one, "002-c", proposed=True)
            await peer.start(one, one.peer, **why)
            await peer.start(one, "003-d", proposed=True)
        for _ in range(3):
            assert await peer.next_view() == {ONE.digest, OTHER.digest}

    asyncio.run(scene())


def test_a_download_of_a_proposal_continues_when_it_is_decided(tmp_path: Path) -> None:
    async def scene() -> None:
        peer = Peer(tmp_path)
        for one in (ONE, OTHER):
            await peer.start(one, "002-c", proposed=True)
        await peer.next_view()
        peer.pulls.drop_all_but(1, [ONE])
        for _ in range(3):
            assert await peer.next_view() == {ONE.digest}

    asyncio.run(scene())


def test_a_dropped_download_can_be_started_again_at_once(tmp_path: Path) -> None:
    async def scene() -> None:
        peer = Peer(tmp_path)
        await peer.start(ONE, "000-a")
        peer.pulls.drop_all_but(1, [])
        task = peer.pulls.start(1, ONE, ["001-b"])
        for _ in range(3):
            await asyncio.sleep(0)
        assert peer.bulk.wanted == {ONE.digest: ["b"]} and not task.done()
        assert peer.pulls.start(1, ONE, []) is task

    asyncio.run(scene())
