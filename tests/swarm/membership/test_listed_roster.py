"""The roster of a listed run: its peers are asked themselves, and nobody else can put a word into it or hide one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, cast

import pytest

from outerloop.swarm.access.access_control import AccessControl
from outerloop.swarm.dht.records import SignedRecords
from outerloop.swarm.membership import listed_roster
from outerloop.swarm.membership.listed_roster import ListedRoster
from outerloop.swarm.membership.roster import Record, Roster, parsed, peer_name
from outerloop.swarm.p2p.framing import CONTROL_BYTES, TurnedAway
from outerloop.swarm.p2p.stream_gate import StreamGate
from outerloop.swarm.timeouts import LISTED_S, ROSTER_EXPIRY_S, VIEW_S
from tests.support.swarm.dht_scene import id_of, signed, trust
from tests.support.swarm.memory_network import MemoryNetwork, MemoryTransport
from tests.support.swarm.virtual_clock import now_s, run

A, B, C, STRANGER = 1, 2, 3, 9
LISTED = [id_of(number) for number in (A, B, C)]
Scene = Callable[[MemoryNetwork], Awaitable[None]]


class Emptied:
    """A DHT in which nothing is ever found: somebody hides all of it."""

    async def store(self, *args: Any, **options: Any) -> bool:
        return False

    async def get(self, *args: Any, **options: Any) -> None:
        return None


class Peer:
    """One peer's part of the roster."""

    def __init__(
        self, network: MemoryNetwork, number: int, *, allow: list[str] | None = None, onlooker: str = ""
    ) -> None:
        own = trust(number, allow=LISTED if allow is None else allow)
        self.transport = MemoryTransport(network, id_of(number))
        self.transport.trust = AccessControl(own.signatures, own.allow, own.rejections, onlooker)
        self.transport.gate = StreamGate(self.transport.trust, member=self.transport.trust.allow.__contains__)
        self.directory = ListedRoster(self.transport, SignedRecords(self.transport.trust), run="r")
        self.own = Record(peer_name(number, id_of(number)), ["/ip4/192.0.2.1/tcp/1"], "f", float(number))
        self.roster = Roster(cast(Any, Emptied()), run="r", own=self.own, directory=self.directory)

    async def names(self) -> list[str]:
        return sorted(record.name[:3] for record in await self.roster.read())


def play(scene: Scene) -> None:
    network = MemoryNetwork()
    run(scene(network))


def test_listed_peers_see_each_other_whatever_becomes_of_the_dht() -> None:
    async def scene(network: MemoryNetwork) -> None:
        peers = [Peer(network, number) for number in (A, B, C)]
        for count, one in enumerate(peers, 1):
            await one.roster.publish()
            expected = [f"{number:03d}" for number in (A, B, C)[:count]]
            network.cut.update(LISTED[count:])
            network.cut.difference_update(LISTED[:count])
            assert [await other.names() for other in peers[:count]] == [expected] * count
        await peers[0].roster.withdraw()
        assert [await other.names() for other in peers[1:]] == [["002", "003"]] * 2, "a tombstone was told"

    play(scene)


def test_nobody_who_is_silent_is_waited_for_and_who_is_late_is_heard_by_the_next_read() -> None:
    async def scene(network: MemoryNetwork) -> None:
        first, second, third = (Peer(network, number) for number in (A, B, C))
        for one in (first, second, third):
            await one.roster.publish()
        network.freeze(id_of(B))
        network.part(id_of(A), id_of(C))
        began = now_s()
        assert await first.names() == ["001"] and now_s() - began <= LISTED_S + 0.1
        network.thaw(id_of(B))
        await asyncio.sleep(0.1)
        assert await first.names() == ["001", "002"]
        network.heal()
        await asyncio.sleep(2 * VIEW_S)
        assert await first.names() == ["001", "002", "003"]
        assert await third.names() == ["001", "002", "003"]

    play(scene)


def test_a_peer_that_is_gone_stays_as_long_as_its_record_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(network: MemoryNetwork) -> None:
        first, second = Peer(network, A), Peer(network, B)
        network.cut.add(id_of(C))
        await first.roster.publish()
        await second.roster.publish()
        assert await first.names() == ["001", "002"]
        network.kill(id_of(B))
        assert await first.names() == ["001", "002"]
        later = time.time() + ROSTER_EXPIRY_S + 1
        monkeypatch.setattr(listed_roster.time, "time", lambda: later)
        assert await first.names() == ["001"]

    play(scene)


def test_an_unlisted_peer_is_neither_asked_nor_answered_nor_believed() -> None:
    async def scene(network: MemoryNetwork) -> None:
        first, stranger = Peer(network, A), Peer(network, STRANGER, allow=[*LISTED, id_of(STRANGER)])
        network.cut.update([id_of(B), id_of(C)])
        asked: list[Any] = []
        await first.roster.publish()
        await stranger.transport.serve(
            "outerloop/1/r/roster", allowed=lambda peer: bool(asked.append(peer)), handler=cast(Any, None)
        )
        assert await first.names() == ["001"] and not asked
        for request in ({}, {"after": ""}, {"record": entry(signed(STRANGER))}):
            async with stranger.transport.open_stream(id_of(A), "outerloop/1/r/roster") as stream:
                await stream.send_object(request)
                with pytest.raises(TurnedAway):
                    await stream.receive_object()
        assert await first.names() == ["001"]

    play(scene)


def entry(record: Any, owner: str = "") -> list[Any]:
    return [owner or id_of(STRANGER), record.value, record.expiration_time]


def test_a_listed_liar_speaks_for_itself_alone() -> None:
    """It tells others' records, forged, old or for ever, and whatever else a map can hold."""

    async def scene(network: MemoryNetwork) -> None:
        first, honest, liar = Peer(network, A), Peer(network, C), Peer(network, B)
        await first.roster.publish()
        await honest.roster.publish()
        for lies in (
            [[id_of(C), signed(B).value, time.time() + 60]],
            [[id_of(C), signed(C, {}).value, time.time() + 60]],
            [[id_of(B), b"x" * 100, float("inf")], 7, [], [[]], {}],
            "all of them",
            None,
            [[id_of(B), bytes(70), 1.0]] * 300,
        ):
            await serve(liar, {"records": lies})
            assert await first.names() == ["001", "003"], lies
        assert first.transport.trust.rejections.of_kind["records"] >= 4
        withdrawn = signed(C, {})
        async with liar.transport.open_stream(id_of(A), "outerloop/1/r/roster") as stream:
            await stream.send_object({"record": entry(withdrawn, id_of(C))})
            await stream.receive_object()
        assert await first.names() == ["001", "003"], "nobody withdraws another"

    play(scene)


async def serve(liar: Peer, answer: dict[str, Any]) -> None:
    async def tell(remote: str, request: Any, stream: Any) -> None:
        await stream.send_object(answer)
        await stream.ended()

    await liar.transport.serve("outerloop/1/r/roster", allowed=lambda peer: True, handler=tell)


def test_this_machine_s_onlooker_reads_all_of_it_in_pages_that_fit_and_nothing_else() -> None:
    async def scene(network: MemoryNetwork) -> None:
        allow = [id_of(number) for number in range(20, 60)]
        looks_on = MemoryTransport(network, id_of(STRANGER))
        looks_on.trust = trust(STRANGER)
        peers = [
            Peer(network, number, allow=allow, onlooker=id_of(STRANGER) * (number == 20)) for number in range(20, 60)
        ]
        for one in peers:
            one.directory.show(
                asdict(one.own) | {"fingerprint": "f" * 200, "settings": bytes(4000)}, expires=time.time() + 60
            )
            await one.directory.serve()
        records = SignedRecords(looks_on.trust)
        found = parsed(await ListedRoster(looks_on, records, run="r").read_through(id_of(20)))
        assert [record.name for record, _ in found] == sorted((one.own.name for one in peers), key=lambda n: n[4:])
        assert 2 * CONTROL_BYTES < 40 * 4000, "it took pages"
        with pytest.raises(TurnedAway):
            await ListedRoster(looks_on, records, run="r").read_through(id_of(21))
        assert not peers[0].transport.trust.admits(id_of(STRANGER), "outerloop/1/r/members", lambda peer: True)

    play(scene)


def test_an_onlooker_is_not_kept_by_pages_without_end() -> None:
    async def scene(network: MemoryNetwork) -> None:
        liar, looks_on = Peer(network, B, allow=[]), Peer(network, STRANGER, allow=[])
        await serve(liar, {"records": [entry(signed(4), id_of(4))], "more": True})
        for _ in range(2):
            found = await looks_on.directory.read_through(id_of(B))
            assert [owner for owner, _, _ in found] == [id_of(4)]
        assert network.opened <= 4

    play(scene)


def test_in_an_open_run_nobody_writes_into_it() -> None:
    async def scene(network: MemoryNetwork) -> None:
        first, stranger = Peer(network, A, allow=[]), Peer(network, STRANGER, allow=[])
        await first.roster.publish()
        async with stranger.transport.open_stream(id_of(A), "outerloop/1/r/roster") as stream:
            await stream.send_object({"record": entry(signed(STRANGER))})
            await stream.receive_object()
        assert [owner for owner, _, _ in await stranger.directory.read_through(id_of(A))] == [id_of(A)]

    play(scene)


def test_a_record_that_has_expired_is_logged_and_not_stored(caplog: pytest.LogCaptureFixture) -> None:
    """The clock of its peer is a minute behind: that peer would otherwise be missing without a word."""

    async def scene(network: MemoryNetwork) -> None:
        first, behind = Peer(network, A), Peer(network, B)
        await first.roster.publish()
        await serve(behind, {"records": [entry(signed(B, life_s=-10), id_of(B))]})
        assert await first.names() == ["001"] and first.transport.trust.rejections.of_kind["records"] == 1
        [line] = [line for line in caplog.messages if "expired" in line]
        assert id_of(B) in line and "clock" in line

    play(scene)
