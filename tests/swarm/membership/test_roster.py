"""The roster: what a peer shows of itself reaches others at a limited rate, and strangers write nothing that harms."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass
from typing import Any, cast

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop.swarm.access.public_names import PublicName
from outerloop.swarm.membership.roster import Record, Roster, read_roster
from outerloop.swarm.membership.status import Status
from outerloop.swarm.timeouts import ROSTER_EXPIRY_S, ROSTER_LEAST_S, ROSTER_REFRESH_S
from tests.support.swarm.dht_scene import trust
from tests.support.swarm.virtual_clock import run, virtual

OWN = Record("000-abc", ["/ip4/192.0.2.1/tcp/1/p2p/abc"], "f", 1.0)
SHOWN = Status(round=3, peers=2, loss=2.5, tokens_per_s=100.0, bytes_sent=7, bytes_received=8, commit="0a")


@dataclass
class Entry:
    value: Any
    expiration_time: float


class FakeDHT:
    """A dictionary, and how often it was written."""

    def __init__(self) -> None:
        self.records: dict[Any, Entry] = {}
        self.writes = 0

    async def store(self, key: str, value: Any, *, expiration_time: float, subkey: str) -> bool:
        self.records[subkey] = Entry(value, expiration_time)
        self.writes += 1
        return True

    async def get(self, key: str, *, latest: bool) -> Entry:
        return Entry(dict(self.records), 0.0)


def dht_with(**records: Any) -> Any:
    dht = FakeDHT()
    dht.records = {peer: Entry(value, time.time() + ROSTER_EXPIRY_S) for peer, value in records.items()}
    return dht


def seen(dht: Any) -> list[Record]:
    return [record for record, _ in run(read_roster(dht, "r"))]


@virtual
async def test_a_status_reaches_others_soon_and_not_more_often_than_allowed() -> None:
    dht = FakeDHT()
    roster = Roster(cast(Any, dht), run="r", own=OWN)
    await roster.publish()
    for number in range(400):
        await roster.show(Status(round=number))
        await asyncio.sleep(0.1)
    assert 40 / ROSTER_LEAST_S - 1 <= dht.writes - 1 <= 40 / ROSTER_LEAST_S
    shown = [record.status for record, _ in await read_roster(cast(Any, dht), "r")]
    assert shown[0] and shown[0].round >= 400 - 10 * ROSTER_LEAST_S - 1
    before = dht.writes
    await asyncio.sleep(3 * ROSTER_REFRESH_S + 1)
    assert dht.writes - before in (3, 4), "without news the record is only kept from expiring"
    await roster.withdraw()
    assert await read_roster(cast(Any, dht), "r") == []


@virtual
async def test_only_a_record_of_a_peer_that_stays_is_missed(caplog: pytest.LogCaptureFixture) -> None:
    class Alone(FakeDHT):
        async def store(self, key: str, value: Any, *, expiration_time: float, subkey: str) -> bool:
            return False

    roster = Roster(cast(Any, Alone()), run="r", own=OWN)
    await roster.publish()
    assert caplog.messages == ["the roster record of 000-abc could not be stored"]
    caplog.clear()
    await roster.withdraw()
    assert caplog.messages == []


def test_a_record_tells_how_old_it_is() -> None:
    dht = dht_with(abc=asdict(OWN))
    dht.records["abc"].expiration_time -= 12
    [(record, age_s)] = run(read_roster(dht, "r"))
    assert record == OWN and age_s == pytest.approx(12, abs=1)


@pytest.mark.parametrize("missing", [{"loading"}, {"counted"}, {"loading", "counted"}])
def test_a_status_of_an_earlier_version_is_read(missing: set[str]) -> None:
    earlier = {name: value for name, value in asdict(SHOWN).items() if name not in missing}
    assert Status.from_map(earlier) == SHOWN


def test_a_status_survives_the_wire() -> None:
    assert Status.from_map(asdict(SHOWN)) == SHOWN and Status.from_map(asdict(Status())) == Status()


BAD = {
    "round": [-1, 1 << 60, True, 1.0, None, "1"],
    "peers": [-1, 5000, False],
    "loss": ["low", 3, [], True, 1e300],
    "tokens_per_s": [b"", {}, -1e30],
    "bytes_sent": [-1, 1 << 63, 0.5],
    "bytes_received": [None],
    "counted": [1, None, "yes"],
    "loading": [-0.1, 1.5, 1, True, "half", float("nan")],
    "commit": ["\x1b[31m", "g", "0" * 65, b"00", None],
    "more": [1],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in BAD.items() for value in values])
def test_a_malformed_status_is_left_out_and_the_peer_stays(field: str, value: Any) -> None:
    dht = dht_with(abc=asdict(OWN) | {"status": asdict(SHOWN) | {field: value}})
    assert seen(dht) == [OWN]


@pytest.mark.parametrize("value", [None, [], "x" * 10_000, {"round": 1}, {i: i for i in range(10_000)}])
def test_a_status_of_another_kind_too(value: Any) -> None:
    assert seen(dht_with(abc=asdict(OWN) | {"status": value})) == [OWN]


@pytest.mark.parametrize(
    "change",
    [
        {"name": "000-abd"},
        {"name": "000-\x1b[2J"},
        {"fingerprint": "\x1b[2J"},
        {"fingerprint": "f" * 300},
        {"joined": "1"},
        {"joined": float("nan")},
        {"joined": float("inf")},
        {"addresses": "/ip4"},
        {"more": 1},
    ],
)
def test_a_malformed_record_is_nobody(change: dict[str, Any]) -> None:
    assert seen(dht_with(abc=asdict(OWN) | change)) == []


def test_addresses_that_cannot_be_shown_are_dropped() -> None:
    hostile = ["\x1b]0;x\x07", 5, "/ip4/192.0.2.9/tcp/1", "x" * 1000, *["/ip4/192.0.2.8/tcp/1"] * 1000]
    [record] = seen(dht_with(abc=asdict(OWN) | {"addresses": hostile}))
    assert record.addresses[0] == "/ip4/192.0.2.9/tcp/1" and len(record.addresses) < 64


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(status=VALUES | st.fixed_dictionaries({name: VALUES for name in asdict(SHOWN)}), whole=VALUES)
def test_whatever_strangers_write_reading_goes_on(status: Any, whole: Any) -> None:
    dht = dht_with(abc=asdict(OWN) | {"status": status}, other=whole)
    assert [record.name for record in seen(dht)] == [OWN.name]


def test_a_public_name_is_in_the_record_and_a_malformed_one_leaves_the_peer_without_a_name() -> None:
    named = PublicName.signed(trust(1).signatures, run="r", text="Ada's laptop", time_s=7).to_bytes()
    [record] = seen(dht_with(abc=asdict(OWN) | {"public_name": named}))
    assert record.title == "Ada's laptop" and OWN.title == ""
    for value in (None, "Ada", float("nan"), b"x" * 10_000, b"\xc1", [named], msgpack.packb(["\x1b[2J", 7, b"s" * 64])):
        assert seen(dht_with(abc=asdict(OWN) | {"public_name": value})) == [OWN]


def test_the_record_of_an_older_peer_has_no_public_name() -> None:
    older = {name: value for name, value in asdict(OWN).items() if name != "public_name"}
    assert seen(dht_with(abc=older)) == [OWN]
