"""What each peer has contributed, told to those who ask: the counts, the names, and what a liar can make of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgpack
import pytest

from outerloop.core.contributor_rows import MAX_CONTRIBUTORS
from outerloop.swarm.access.access_control import CONTRIBUTORS, AccessControl
from outerloop.swarm.access.public_names import KnownNames, PublicName
from outerloop.swarm.accountability.contributors import (
    ANSWER_BYTES,
    KEPT,
    ContributorService,
    Totals,
    digest_of,
    fetch,
    fetch_digest,
    read_names,
)
from outerloop.swarm.p2p.framing import Stream, Unreadable
from outerloop.swarm.p2p.transport import Request, RpcService
from outerloop.swarm.timeouts import ROSTER_REFRESH_S
from outerloop.swarm.validation import MalformedMessage
from outerloop.types import Contributor
from tests.support.swarm.dht_scene import id_of, trust
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import virtual

A, B, C = 1, 2, 3
COUNTS = (Contributor(id_of(A), 3, 24, 0, 2), Contributor(id_of(B), 1, 8, 1, 1))


def statement(text: str, by: int) -> bytes:
    return PublicName.signed(trust(by).signatures, run="r", text=text, time_s=7).to_bytes()


class Liar(RpcService):
    """Answers every question with the same bytes, and counts the questions."""

    service = CONTRIBUTORS

    def __init__(self, transport: MemoryTransport, answer: bytes) -> None:
        super().__init__(transport, run="r")
        self.answer, self.questions = answer, 0

    async def _answer(self, remote: str, request: Request, stream: Stream) -> None:
        self.questions += 1
        await stream.send(self.answer)
        await stream.ended()


class Scene:
    """Peers with a service each, and a roster with these names."""

    def __init__(self, folder: Path, **roster: bytes) -> None:
        self.network, self.folder = MemoryNetwork(), folder
        self.roster = dict(roster)

    def transport(self, number: int) -> MemoryTransport:
        out, own = MemoryTransport(self.network, id_of(number)), trust(number)
        out.trust = AccessControl(own.signatures, own.allow, own.rejections)
        return out

    async def peer(self, number: int) -> ContributorService:
        async def present() -> list[tuple[str, bytes]]:
            return list(self.roster.items())

        names = KnownNames(trust(number).signatures, run="r")
        out = ContributorService(
            self.transport(number), run="r", names=names, file=self.folder / f"{number}.names", present=present
        )
        await out.serve()
        return out


@virtual
async def test_a_visitor_gets_the_newest_counts_with_the_names(tmp_path: Path) -> None:
    scene = Scene(tmp_path, **{id_of(A): statement("Ada", A)})
    visitor, service = scene.transport(C), await scene.peer(A)
    assert await fetch(visitor, "r", id_of(A)) is None, "before the first round"
    await asyncio.sleep(1)
    await service.publish(1, COUNTS[:1])
    await service.publish(2, COUNTS)
    totals = await fetch(visitor, "r", id_of(A))
    assert totals is not None and (totals.round, totals.contributors) == (2, COUNTS)
    assert totals.statements == {id_of(A): statement("Ada", A)}


@virtual
async def test_digests_of_the_last_rounds_can_be_compared(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    visitor, service = scene.transport(C), await scene.peer(A)
    for number in range(KEPT + 1):
        await service.publish(number, COUNTS)
    totals = await fetch(visitor, "r", id_of(A))
    assert totals is not None and await fetch_digest(visitor, "r", id_of(A), KEPT) == totals.digest
    assert await fetch_digest(visitor, "r", id_of(A), 1) == digest_of(1, COUNTS) != totals.digest
    assert await fetch_digest(visitor, "r", id_of(A), 0) is None, "forgotten"
    assert await fetch_digest(visitor, "r", id_of(B), KEPT) is None, "no such peer"


@virtual
async def test_names_of_contributors_outlast_their_owners_and_a_restart(tmp_path: Path) -> None:
    """A is there with its name, and leaves; B restarts; C comes later and has never met A."""
    scene = Scene(tmp_path, **{id_of(A): statement("Ada", A), id_of(B): statement("Bob", B)})
    service = await scene.peer(B)
    await service.publish(2, COUNTS)
    await asyncio.sleep(ROSTER_REFRESH_S + 1)
    del scene.roster[id_of(A)]
    assert dict(read_names(tmp_path / f"{B}.names")) == {
        id_of(A): statement("Ada", A),
        id_of(B): statement("Bob", B),
    }
    again = KnownNames(trust(B).signatures, run="r")
    (tmp_path / "folder").mkdir()
    assert read_names(tmp_path / "folder") == [], "it cannot be read"
    for peer, one in read_names(tmp_path / f"{B}.names"):
        assert again.learn(peer, one)
    assert service.names.texts() == again.texts() == {id_of(A): "Ada", id_of(B): "Bob"}
    scene.roster[id_of(C)] = statement("Cleo", C)
    late = await scene.peer(C)
    await late.publish(2, COUNTS)
    await asyncio.sleep(3 * ROSTER_REFRESH_S)
    assert late.names.texts() == {id_of(A): "Ada", id_of(B): "Bob", id_of(C): "Cleo"}
    del scene.roster[id_of(C)]
    await asyncio.sleep(3 * ROSTER_REFRESH_S)
    assert late.names.texts() == {id_of(A): "Ada", id_of(B): "Bob"}, "C is not there and has contributed nothing"


@virtual
async def test_a_liar_cannot_name_others(tmp_path: Path) -> None:
    """B answers with names that A has not signed, and with one of a peer that has contributed nothing."""
    scene = Scene(tmp_path, **{id_of(A): statement("Ada", A), id_of(B): b""})
    counts = (*COUNTS, Contributor(id_of(C), 99, 99, 0, 2))
    false = Totals(2, counts, {id_of(A): statement("Eve", B), id_of(C): statement("Cleo", C)})
    liar = Liar(scene.transport(B), false.to_bytes())
    await liar.serve()
    service = await scene.peer(A)
    await service.publish(2, COUNTS)
    await asyncio.sleep(3 * ROSTER_REFRESH_S)
    assert liar.questions == 1 and service.names.texts() == {id_of(A): "Ada"}
    told = await fetch(scene.transport(C), "r", id_of(A))
    assert told is not None and told.contributors == COUNTS, "counts of another peer are never taken"


GOOD: list[Any] = [id_of(A), 1, 8, 0, 0, b""]
BAD_ROWS = {
    "no row": 7,
    "too short": GOOD[:5],
    "a name that is no peer id": ["<script>", *GOOD[1:]],
    "a number as a peer": [7, *GOOD[1:]],
    "no number": [GOOD[0], float("nan"), *GOOD[2:]],
    "true": [GOOD[0], True, *GOOD[2:]],
    "less than nothing": [GOOD[0], 1, -8, *GOOD[3:]],
    "more than there can be": [GOOD[0], 1, (1 << 62) + 1, *GOOD[3:]],
    "a name as text": [*GOOD[:5], "Ada"],
    "a name of 10 kB": [*GOOD[:5], b"a" * 10_000],
}


@pytest.mark.parametrize("what", BAD_ROWS)
def test_a_malformed_row_is_refused(what: str) -> None:
    with pytest.raises(MalformedMessage):
        Totals.from_bytes(msgpack.packb({"round": 2, "rows": [BAD_ROWS[what]]}))


@pytest.mark.parametrize(
    "answer",
    [
        b"\xc1",
        msgpack.packb(7),
        msgpack.packb({"round": 2}),
        msgpack.packb({"round": -1, "rows": []}),
        msgpack.packb({"round": 2, "rows": {}}),
        msgpack.packb({"round": 2, "rows": [GOOD, GOOD]}),
        msgpack.packb({"round": 2, "rows": [[f"x{n}", 1, 8, 0, 0, b""] for n in range(MAX_CONTRIBUTORS + 2)]}),
    ],
)
def test_a_malformed_answer_is_refused(answer: bytes) -> None:
    with pytest.raises(MalformedMessage):
        Totals.from_bytes(answer)


@virtual
async def test_an_answer_that_is_too_long_or_unreadable_is_not_taken(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    visitor, liar = scene.transport(C), Liar(scene.transport(A), b"")
    await liar.serve()
    for liar.answer in (b"x" * (ANSWER_BYTES + 1), b"\xc1"):
        with pytest.raises(Unreadable):
            await fetch(visitor, "r", id_of(A))


def test_the_largest_answer_fits() -> None:
    name = PublicName.signed(trust(A).signatures, run="r", text="🙂" * 64, time_s=1 << 40).to_bytes()
    peers = [f"12D3KooW{number:044d}" for number in range(MAX_CONTRIBUTORS)]
    totals = Totals(1 << 40, tuple(Contributor(peer, 1 << 40, 1 << 62, 0, 1 << 40) for peer in peers), {})
    full = Totals(totals.round, totals.contributors, dict.fromkeys(peers, name))
    assert len(full.to_bytes()) <= ANSWER_BYTES
    read = Totals.from_bytes(full.to_bytes())
    assert read == full and read is not None and read.digest == totals.digest, "names are not in the digest"


@pytest.mark.parametrize("content", [b"", b"\xc1", msgpack.packb(7), msgpack.packb([7]), msgpack.packb([[7, b"x"]])])
def test_a_damaged_file_of_names_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "names").write_bytes(content)
    assert list(read_names(tmp_path / "names")) == [] == list(read_names(tmp_path / "missing"))
