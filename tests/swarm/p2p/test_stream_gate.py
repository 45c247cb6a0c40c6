"""Streams of others: how many, how often and how much, so that strangers and one member leave room for the rest."""

from __future__ import annotations

import asyncio
import errno
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hivemind.p2p import P2PDaemonError, PeerID

from outerloop.swarm.access.identity import Life, ensure_identity
from outerloop.swarm.access.rate_limits import EVERYBODY
from outerloop.swarm.consensus.messages import MAX_MESSAGE_BYTES
from outerloop.swarm.dht.records import SignedRecords
from outerloop.swarm.membership.incarnations import Incarnations
from outerloop.swarm.membership.listed_roster import ListedRoster
from outerloop.swarm.p2p.framing import BrokenStream, Stream, TurnedAway
from outerloop.swarm.p2p.observer import visit
from outerloop.swarm.p2p.stream_gate import (
    HELD_AT_ONCE,
    MEMBER_STREAMS,
    NEWCOMER_STREAMS,
    OUTSIDE_STREAMS,
    RECEIVING_BYTES,
    REQUEST_BYTES,
    STRANGER_STREAMS,
    TURNED_AWAY,
    TURNED_AWAY_IN_ALL,
)
from outerloop.swarm.p2p.transport import Request, anybody
from outerloop.swarm.timeouts import FIRST_FRAME_S, HOLD_S, STALL_S
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import run, virtual


class Door:
    """A peer "b", of whom "m" is a member. It serves "public" to anybody and "run" to all that it knows."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.link = MemoryTransport(self.network, "b")
        self.link.member = "m".__eq__
        self.asked: list[str] = []
        self.answer_bytes = 0

    async def serve(self) -> Door:
        await self.link.serve("public", allowed=anybody, handler=self.answer)
        await self.link.serve("run", allowed=lambda peer: True, handler=self.answer)
        return self

    async def answer(self, remote: str, request: Request, stream: Stream) -> None:
        self.asked.append(remote)
        await stream.send(bytes(self.answer_bytes))
        await stream.send_object({"answered": True})
        await stream.ended()

    @property
    def refused(self) -> dict[str, float]:
        return self.link.trust.rejections.counters()

    @property
    def held(self) -> int:
        """Streams that are open here."""
        return sum(self.link.gate.open_streams.values())

    @asynccontextmanager
    async def idle(self, peer: str, count: int, protocol: str) -> AsyncIterator[list[Stream]]:
        """Streams on which nothing is said."""
        async with AsyncExitStack() as opened:
            link = MemoryTransport(self.network, peer)
            yield [await opened.enter_async_context(link.open_stream("b", protocol)) for _ in range(count)]

    async def ask(self, peer: str, protocol: str = "public", *, more: bytes = b"") -> bool:
        """Whether a request is answered."""
        async with MemoryTransport(self.network, peer).open_stream("b", protocol) as stream:
            with suppress(BrokenStream):
                await stream.send_object({"more": more})
                await stream.receive(at_most=self.answer_bytes)
                return bool(await stream.receive_object())
        return False


@pytest.mark.parametrize(
    ("peer", "protocol", "most"),
    [("s", "public", STRANGER_STREAMS), ("s", "run", NEWCOMER_STREAMS), ("m", "public", MEMBER_STREAMS)],
)
@virtual
async def test_one_peer_holds_so_many_streams_open_and_others_are_answered(peer: str, protocol: str, most: int) -> None:
    door = await Door().serve()
    async with door.idle(peer, 3 * most, protocol):
        await asyncio.sleep(1)
        assert door.held == most and door.refused["refused_requests"] == 2 * most
        assert await door.ask("o") and await door.ask("o", "run")
    await asyncio.sleep(1)
    assert door.held == 0 and await door.ask(peer)


@pytest.mark.parametrize(("peer", "most"), [("s", NEWCOMER_STREAMS), ("m", MEMBER_STREAMS)])
@virtual
async def test_streams_of_one_peer_count_together_whatever_they_are_for(peer: str, most: int) -> None:
    door = await Door().serve()
    async with door.idle(peer, most - 4, "run"), door.idle(peer, 8, "public"), door.idle(peer, 8, "run"):
        await asyncio.sleep(1)
        assert door.held == most


@virtual
async def test_all_strangers_hold_so_many_together_and_a_member_is_answered_all_the_same() -> None:
    door = await Door().serve()
    async with AsyncExitStack() as opened:
        for number in range(100):
            await opened.enter_async_context(door.idle(f"stranger{number}", STRANGER_STREAMS, "public"))
        await asyncio.sleep(1)
        assert door.held == OUTSIDE_STREAMS
        assert not await door.ask("o") and await door.ask("m") and await door.ask("m", "run")
        await asyncio.sleep(FIRST_FRAME_S)
        assert door.held == 0 and await door.ask("o"), "nobody keeps a stream by saying nothing"


class ListedDoor(Door):
    """A peer "b" of a run whose allow-list is "m"."""

    def __init__(self) -> None:
        super().__init__()
        self.link = MemoryTransport(self.network, "b", allow=["m"])

    async def serve(self) -> ListedDoor:
        await self.link.serve("run", allowed=lambda peer: False, handler=self.answer)
        await self.link.serve("public", allowed=anybody, handler=self.answer)
        return self

    async def answers(self, peer: str, protocol: str = "run") -> str:
        """Return what becomes of a request within a second: "refused", "held" or "closed"."""
        async with MemoryTransport(self.network, peer).open_stream("b", protocol) as stream:
            try:
                await stream.receive_object(patience_s=1)
            except TurnedAway:
                return "refused"
            except BrokenStream as error:
                return "held" if "nothing was received" in str(error) else "closed"
        raise AssertionError("answered")


@virtual
async def test_a_stranger_of_a_listed_run_that_asks_again_and_again_is_held() -> None:
    """Nothing it sends is read. A peer on the list is refused each time, whatever it may not ask."""
    door = await ListedDoor().serve()
    assert [await door.answers("m") for _ in range(2 * int(TURNED_AWAY.burst))] == ["refused"] * 32
    assert [await door.answers("s") for _ in range(int(TURNED_AWAY.burst))] == ["refused"] * 16
    async with door.idle("s", 40, "run"):
        await asyncio.sleep(0.1)  # one more is refused after a second
        assert await door.answers("s") == "held" and door.asked == []
        assert await door.ask("m", "public")
    await asyncio.sleep(TURNED_AWAY.burst / TURNED_AWAY.per_s)
    assert await door.answers("s") == "refused"


@virtual
async def test_a_held_stream_ends_after_a_while() -> None:
    door = await ListedDoor().serve()
    async with door.idle("s", int(TURNED_AWAY.burst) + 1, "run") as streams:
        with pytest.raises(BrokenStream, match="nothing was received"):
            await streams[-1].receive_object(patience_s=HOLD_S / 2 - 1)
        with pytest.raises(BrokenStream, match="ended"):
            await streams[-1].receive_object(patience_s=HOLD_S + 2)


@virtual
async def test_a_held_stream_that_its_owner_closes_leaves_room_for_another() -> None:
    door = await ListedDoor().serve()
    async with AsyncExitStack() as refused:
        for number in range(int(TURNED_AWAY_IN_ALL.burst)):
            await refused.enter_async_context(door.idle(f"stranger{number}", 1, "run"))
        async with AsyncExitStack() as opened:
            for number in range(HELD_AT_ONCE):
                await opened.enter_async_context(door.idle(f"more{number}", 1, "run"))
            await asyncio.sleep(0.01)
            assert await door.answers("another") == "closed"
        await asyncio.sleep(1)
        for number in range(int(2 * TURNED_AWAY_IN_ALL.per_s)):
            await refused.enter_async_context(door.idle(f"later{number}", 1, "run"))
        assert await door.answers("another") == "held"


@virtual
async def test_strangers_of_a_listed_run_are_held_for_what_they_ask_together_and_no_more_than_there_is_room() -> None:
    door = await ListedDoor().serve()
    async with AsyncExitStack() as opened:
        for number in range(int(TURNED_AWAY_IN_ALL.burst)):
            await opened.enter_async_context(door.idle(f"stranger{number}", 1, "run"))
        assert await door.answers("another") == "held"
        for number in range(HELD_AT_ONCE):
            await opened.enter_async_context(door.idle(f"more{number}", 1, "run"))
        await asyncio.sleep(0.1)
        assert await door.answers("another") == "closed" and await door.ask("m", "public")


@virtual
async def test_a_first_frame_may_take_longer_for_a_member() -> None:
    door = await Door().serve()
    async with door.idle("s", 1, "public") as slow, door.idle("m", 1, "public") as member:
        for stream in (*slow, *member):
            await stream.write((9).to_bytes(8, "big"))  # and no more
        await asyncio.sleep(FIRST_FRAME_S + 1)
        assert door.held == 1
        await asyncio.sleep(STALL_S)
        assert door.held == 0 and not door.asked


@virtual
async def test_public_requests_are_short() -> None:
    door = await Door().serve()
    assert not await door.ask("s", more=bytes(REQUEST_BYTES)) and await door.ask("s", more=bytes(REQUEST_BYTES // 2))
    assert await door.ask("s", "run", more=bytes(REQUEST_BYTES))
    assert door.asked == ["s", "s"] and door.refused["refused_requests"] == 1


@virtual
async def test_a_stranger_asks_so_often_and_all_together_so_often() -> None:
    async def answered(door: Door, peer: str, count: int) -> int:
        return sum([await door.ask(peer) for _ in range(count)])

    door = await Door().serve()
    assert await answered(door, "s", 100) == 32 and await answered(door, "m", 100) == 100
    await asyncio.sleep(3)
    assert await answered(door, "s", 100) == 12, "four a second"
    await asyncio.sleep(10)
    assert sum([await answered(door, f"stranger{number}", 100) for number in range(20)]) == 256
    assert await answered(door, "m", 100) == 100


@pytest.mark.long
@virtual
async def test_a_newcomer_asks_so_often_for_what_is_not_public_and_the_public_budget_is_not_spent() -> None:
    door = await Door().serve()
    assert sum([await door.ask("s", "run") for _ in range(2000)]) == 512
    assert sum([await door.ask("m", "run") for _ in range(2000)]) == 2000 and await door.ask("s")
    await asyncio.sleep(3)
    assert sum([await door.ask("s", "run") for _ in range(2000)]) == 3 * 128


@pytest.mark.parametrize(("requests", "told"), [(1000, "s"), (20, EVERYBODY)])
def test_the_peer_that_spent_a_budget_is_named(requests: int, told: str, caplog: pytest.LogCaptureFixture) -> None:
    """One that asks too often itself, and a newcomer that finds the strangers' common budget spent by others."""

    async def scene() -> None:
        door = await Door().serve()
        for number in range(1000 // requests):
            for _ in range(requests):
                await door.ask(f"s{number or ''}")

    run(scene())
    assert any(f"(requests) {told}: sent too many requests" in line for line in caplog.messages)
    assert not any(
        f"(requests) {other}: sent too many requests" in line
        for other in {"s", "s20"} - {told}
        for line in caplog.messages
    )


@pytest.mark.parametrize("protocol", ["outerloop/1/r/roster", "outerloop/1/r/incarnation"])
@virtual
async def test_a_stranger_of_an_open_run_is_answered_so_often_whatever_it_asks(protocol: str, tmp_path: Path) -> None:
    door = Door()
    await ListedRoster(door.link, SignedRecords(door.link.trust), run="r").serve()
    key = tmp_path / "identity.key"
    ensure_identity(key)
    await Incarnations(door.link, run="r", life=Life.begin(key), on_status=print).serve()

    async def ask(peer: str) -> bool:
        async with MemoryTransport(door.network, peer).open_stream("b", protocol) as stream:
            with suppress(BrokenStream):
                await stream.send_object({})
                return bool(await stream.receive_object())
        return False

    assert sum([await ask("s") for _ in range(100)]) == 32 and sum([await ask("m") for _ in range(100)]) == 100


@virtual
async def test_a_stranger_gets_so_many_bytes() -> None:
    door = await Door().serve()
    door.answer_bytes = (1 << 20) + 4096

    async def ask_ten_times() -> int:
        before = len(door.asked)
        for _ in range(10):
            await door.ask("s")
            await asyncio.sleep(0.001)  # what it took is counted when the stream has ended
        return len(door.asked) - before

    assert await ask_ten_times() == 4, "4 MiB at once"
    await asyncio.sleep(8)
    assert await ask_ten_times() == 2, "256 KiB a second"


@virtual
async def test_the_bytes_announced_by_one_member_are_bounded_over_all_its_streams() -> None:
    """Forty of the longest ballots that never come: the room of four, and another member's ballot finds some."""
    door, came = await Door().serve(), []

    async def take(remote: str, request: Request, stream: Stream) -> None:
        came.append(await stream.receive(at_most=MAX_MESSAGE_BYTES))

    await door.link.serve("ballot", allowed=lambda peer: True, handler=take)
    door.link.member = lambda peer: True
    async with door.idle("m", 40, "ballot") as streams:
        for stream in streams:
            await stream.send_object({})
            with suppress(BrokenStream):
                await stream.write(MAX_MESSAGE_BYTES.to_bytes(8, "big") + bytes(32) + bytes(1000))
        await asyncio.sleep(1)
        assert door.held == RECEIVING_BYTES // MAX_MESSAGE_BYTES == 4 and not came
        async with MemoryTransport(door.network, "n").open_stream("b", "ballot") as stream:
            await stream.send_object({})
            await stream.send(bytes(MAX_MESSAGE_BYTES))
            await asyncio.sleep(1)
    assert len(came) == 1 and door.refused["refused_requests"] == 36
    await asyncio.sleep(1)
    assert not door.link.gate.receiving, "what is over holds nothing"


@virtual
async def test_strangers_of_a_listed_run_are_told_so_sixteen_at_a_time() -> None:
    door = Door()
    door.link = MemoryTransport(door.network, "b", allow=["b", "m"])
    await door.serve()
    async with door.idle("s", 100, "public") as streams:
        await asyncio.sleep(0)
        told = 0
        for stream in streams:
            try:
                await stream.receive_object()
            except TurnedAway:
                told += 1
            except BrokenStream:
                pass
        assert told == 16 and door.held == 0 and door.refused["refused_outsiders"] == 100


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOSPC])
@virtual
async def test_a_handler_that_finds_no_file_to_open_is_asked_again(code: int) -> None:
    door, failures = await Door().serve(), [OSError(code, "no more")]

    async def read(remote: str, request: Request, stream: Stream) -> None:
        if failures:
            raise failures.pop()
        await door.answer(remote, request, stream)

    await door.link.serve("run", allowed=lambda peer: True, handler=read)
    assert not await door.ask("m", "run") and await door.ask("m", "run")


def test_another_error_of_a_handler_is_not_hidden() -> None:
    async def scene() -> None:
        door = await Door().serve()

        async def fail(remote: str, request: Request, stream: Stream) -> None:
            raise PermissionError("not this one")

        await door.link.serve("run", allowed=lambda peer: True, handler=fail)
        assert not await door.ask("m", "run")

    with pytest.raises(PermissionError):
        run(scene())


# the same with daemons

VICTIM = """
import json, os, resource, select, sys
from pathlib import Path
from outerloop.swarm.p2p.observer import visit
most, failed = 0, 0
with visit(observer=False) as peer:
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
    print(peer.addresses[0], flush=True)
    while not select.select([sys.stdin], [], [], 0.01)[0]:
        try:
            most = max(most, len(os.listdir("/proc/self/fd")))
            Path(sys.argv[2]).write_bytes(b"payload")
        except OSError:
            failed += 1
    print(json.dumps([most, failed]), flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize(("files", "streams"), [(512, 800), pytest.param(1024, 1500, marks=pytest.mark.slow)])
def test_idle_streams_leave_a_peer_files_to_open(tmp_path: Path, files: int, streams: int) -> None:
    """More streams than a process may open files; it goes on writing.

    Until the first of them are closed, asyncio accepts up to 100 streams in each of two turns of its loop, beside those
    that may stay open: less than 300 files.
    """
    command = [sys.executable, "-c", VICTIM, str(files), str(tmp_path / "payload")]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as victim,
        visit(observer=True) as stranger,
    ):
        try:
            assert victim.stdin is not None and victim.stdout is not None
            target = stranger.call(stranger.dial(victim.stdout.readline().strip()), timeout_s=60)
            left = stranger.call(idle_streams(stranger, target, streams), timeout_s=180)
            most, failed = json.loads(victim.communicate("\n", timeout=60)[0])
        finally:
            victim.kill()
    assert failed == 0 and most < files and left <= STRANGER_STREAMS


async def idle_streams(stranger: Any, target: str, count: int) -> int:
    """Open streams and say nothing; how many of them the other side keeps."""
    opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    call: Callable[..., Any] = stranger._p2p.call_binary_stream_handler  # noqa: SLF001

    async def one() -> None:
        with suppress(P2PDaemonError, OSError, asyncio.IncompleteReadError):
            opened.append((await call(PeerID.from_base58(target), "outerloop/1/probe"))[1:])

    for _ in range(0, count, 50):
        await asyncio.gather(*(one() for _ in range(50)))
    await asyncio.sleep(2)
    left = sum(not reader.at_eof() and reader.exception() is None for reader, _ in opened)
    for _, writer in opened:
        writer.close()
    return left
