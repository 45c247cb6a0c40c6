"""How many payloads of one peer a round may cost: a few on disk, however many it signs and proposes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outerloop.swarm.consensus.commit import Participant
from outerloop.swarm.gather.payload_downloads import PAYLOADS_KEPT, PayloadDownloads
from outerloop.swarm.gather.round_context import RoundContext
from outerloop.swarm.gather.round_store import RoundStore
from outerloop.swarm.storage import Folder
from outerloop.swarm.transfer.bulk import Bulk
from outerloop.swarm.transfer.signed_payload import sign_payload
from outerloop.types import Round
from tests.support.swarm.memory_keys import trust_of

NAME = "003-liar"


class Offered:
    """Gives what its owner signed, by sha256."""

    def __init__(self) -> None:
        self.held: dict[bytes, bytes] = {}
        self.given = 0

    def sign(self, payload: bytes, *, number: int = 1, name: str = NAME) -> Participant:
        signatures = trust_of("liar").signatures
        content = sign_payload(payload, signatures, session="r", number=number, peer=name)
        one = Participant.of(name, content)
        self.held[one.digest] = content
        return one

    async def get(self, sha: bytes, length: int, holders: Any, **options: Any) -> bytes:
        self.given += 1
        await asyncio.sleep(0)
        return self.held[sha]


class Peer:
    """Takes payloads of one liar into a folder."""

    def __init__(self, folder: Path) -> None:
        self.offered, self.store, self.held = Offered(), RoundStore(Folder(folder)), list[Participant]()
        self.trust = trust_of("honest")
        context = SimpleNamespace(
            trust=self.trust, session="r", round_of=Round, report_stored=lambda number, one: self.held.append(one)
        )
        self.pulls = PayloadDownloads(cast(RoundContext, context), cast(Bulk, self.offered), self.store, max_bytes=1000)

    async def pull(self, *payloads: Participant, number: int = 1, decided: bool = False) -> None:
        await asyncio.wait([self.pulls.start(number, one, [NAME], decided=decided) for one in payloads])


@pytest.mark.parametrize("at_once", [False, True])
def test_a_liar_fills_no_disk_with_new_payloads_of_one_round(tmp_path: Path, at_once: bool) -> None:
    """View after view another payload that it signed. Before: all of them lay on disk until the round was over."""

    async def scene() -> None:
        peer = Peer(tmp_path)
        payloads = [peer.offered.sign(bytes([index]) * 100) for index in range(20)]
        for some in [payloads] if at_once else [[one] for one in payloads]:
            await peer.pull(*some)
        assert len(list(tmp_path.iterdir())) == len(peer.held) == peer.offered.given == PAYLOADS_KEPT
        assert peer.trust.rejections.of_kind["payloads"] >= 1
        other_round = peer.offered.sign(b"of the next round", number=2)
        await peer.pull(other_round, number=2)
        assert peer.held[-1] == other_round

    asyncio.run(scene())


def test_a_payload_that_a_majority_chose_is_taken_beyond_the_quota(tmp_path: Path) -> None:
    async def scene() -> None:
        peer = Peer(tmp_path)
        payloads = [peer.offered.sign(bytes([index]) * 100) for index in range(PAYLOADS_KEPT + 1)]
        for one in payloads:
            await peer.pull(one)
        assert payloads[-1] not in peer.held and not peer.pulls.is_rejected(1, payloads[-1])
        await peer.pull(payloads[-1], decided=True)
        assert (1, payloads[-1]) in peer.store

    asyncio.run(scene())


def test_one_key_under_several_names_is_one_peer(tmp_path: Path) -> None:
    async def scene() -> None:
        peer = Peer(tmp_path)
        for index in range(20):
            await peer.pull(peer.offered.sign(b"x", name=f"{index:03d}-liar"))
        assert len(peer.held) == PAYLOADS_KEPT

    asyncio.run(scene())
