"""The agreement without a network: who lands what when members are late, missing, or badly connected."""

import asyncio
from typing import Any, cast

import pytest
from memory_network import MemoryNetwork, MemoryTransport
from virtual_clock import run

from outerloop.swarm.board import Board
from outerloop.swarm.membership import Membership
from outerloop.swarm.payloads import Payloads
from outerloop.swarm.roster import Record
from outerloop.swarm.unanimous import Unanimous
from outerloop.types import Round, RoundFailed, UserError

FIRST = Round(0)


class Table:
    """A roster in memory."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records

    async def read(self) -> list[Record]:
        return list(self.records)


class Member:
    def __init__(self, network: MemoryNetwork, own: Record, table: Table, *, peers: int, deadline_s: float) -> None:
        link = MemoryTransport(network, own.peer_id)
        self.members = Membership(link, cast(Any, table), run="r", peers=peers, own=own)
        self.payloads = Payloads(link, self.members, run="r", max_blob_bytes=1000, wait_s=deadline_s)
        self.rounds = Unanimous(link, self.members, self.payloads, run="r", deadline_s=deadline_s)

    async def serve(self) -> None:
        for part in (self.members, self.payloads, self.rounds):
            await part.serve()


async def form(network: MemoryNetwork, names: list[str], *, deadline_s: float = 10.0) -> list[Member]:
    table = Table([Record(name, ["/ip4/1"], "same", 0.0) for name in names])
    members = [Member(network, own, table, peers=len(names), deadline_s=deadline_s) for own in table.records]
    for member in members:
        await member.serve()
    await asyncio.gather(*(member.members.form(timeout_s=10) for member in members))
    return members


@pytest.mark.parametrize("peers", [1, 2, 5])
def test_everybody_gets_the_same_in_the_order_of_names(peers: int) -> None:
    async def scene() -> None:
        members = await form(MemoryNetwork(), [f"{index:03d}-p{index}" for index in range(peers)])
        blobs = [bytes([index]) * 10 for index in range(peers)]
        landed = await asyncio.gather(
            *(one.rounds.gather(FIRST, blob) for one, blob in zip(members, blobs, strict=True))
        )
        assert [one.blob for one in landed[0]] == blobs and all(one == landed[0] for one in landed)
        assert [one.payloads.bytes_sent for one in members] == [10 * (peers - 1)] * peers
        await asyncio.gather(*(one.rounds.linger() for one in members))

    run(scene())


def test_a_failed_round_is_answered_no_for_ever_after() -> None:
    async def scene() -> None:
        early, late = await form(MemoryNetwork(), ["000-a", "001-b"], deadline_s=30)
        with pytest.raises(RoundFailed, match=r"no payload after 30 s from 001-b"):
            await early.rounds.gather(FIRST, b"early")
        with pytest.raises(RoundFailed, match="000-a failed it"):
            await late.rounds.gather(FIRST, b"late")
        landed = await asyncio.gather(early.rounds.gather(Round(1), b"x"), late.rounds.gather(Round(1), b"y"))
        assert landed[0] == landed[1]

    run(scene())


def test_broken_streams_are_tried_again() -> None:
    async def scene() -> None:
        network = MemoryNetwork()
        one, two = await form(network, ["000-a", "001-b"])
        network.breaks.extend([0] * 5)
        landed = await asyncio.gather(one.rounds.gather(FIRST, b"x"), two.rounds.gather(FIRST, b"y"))
        assert landed[0] == landed[1]

    run(scene())


def test_a_peer_that_is_gone_fails_the_round_before_its_deadline() -> None:
    async def scene() -> None:
        network = MemoryNetwork()
        one, _ = await form(network, ["000-a", "001-b"], deadline_s=25)
        network.cut.add("b")
        with pytest.raises(RoundFailed, match="001-b is gone"):
            await one.rounds.gather(FIRST, b"x")

    run(scene())


def test_a_payload_over_the_limit_never_lands() -> None:
    async def scene() -> None:
        one, two = await form(MemoryNetwork(), ["000-a", "001-b"], deadline_s=0.5)
        outcomes = await asyncio.gather(
            one.rounds.gather(FIRST, b"x"), two.rounds.gather(FIRST, bytes(1001)), return_exceptions=True
        )
        assert all(isinstance(outcome, RoundFailed) for outcome in outcomes)

    run(scene())


def test_the_first_to_join_are_the_members_and_a_third_is_told() -> None:
    async def scene() -> None:
        table = Table([Record(f"00{index}-p{index}", ["/ip4/1"], "same", float(-index)) for index in range(3)])
        network = MemoryNetwork()
        trio = [Member(network, own, table, peers=2, deadline_s=5) for own in table.records]
        for one in trio:
            await one.serve()
        await asyncio.gather(*(one.members.form(timeout_s=10) for one in trio[1:]))
        assert list(trio[1].members.names) == list(trio[2].members.names) == ["p1", "p2"]
        with pytest.raises(UserError, match=r"3 of 2 peers are there .*too many"):
            await trio[0].members.form(timeout_s=0.3)

    run(scene())


def test_the_board_waits_for_the_future_and_forgets_the_past() -> None:
    async def scene() -> None:
        board: Board[str] = Board(keep=2)
        waiting = asyncio.create_task(board.read(Round(2)))
        await asyncio.sleep(0)
        for number in range(1, 4):
            board.post(Round(number), f"round {number}")
        assert await waiting == "round 2"
        assert await board.read(Round(1)) is None and board.get(Round(3)) == "round 3"
        assert board.get(Round(3, fragment=1)) is None

    run(scene())
