"""Roster records in the DHT: a node takes what their owners signed, small and soon over, and nothing else."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import msgpack
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hivemind.dht import DHTNode
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord

from outerloop.swarm.access.access_control import QUIET_S, AccessControl, AllowList, RejectionLog
from outerloop.swarm.access.rate_limits import EVERYBODY
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.dht import records
from outerloop.swarm.dht.records import MAX_RECORD_BYTES, SignedRecords
from outerloop.swarm.membership.roster import Record, Roster, read_roster
from outerloop.swarm.timeouts import ROSTER_EXPIRY_S

KEY = DHTID.generate(source="outerloop/r/roster").to_bytes()

TUPLE_EXTENSION = 0x40
"""Code of hivemind's extension of msgpack for tuples."""


def trust(number: int, *, allow: list[str] | None = None) -> AccessControl:
    signatures = Signatures(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))
    return AccessControl(signatures, AllowList(allow or [], own=signatures.peer_id), RejectionLog())


A, B = trust(1), trust(2)
A_ID, B_ID = A.signatures.peer_id, B.signatures.peer_id


def record(value: Any = None, *, of: AccessControl = A, life_s: float = ROSTER_EXPIRY_S) -> DHTRecord:
    subkey = msgpack.packb(of.signatures.peer_id)
    plain = DHTRecord(KEY, subkey, msgpack.packb(value), time.time() + life_s)
    return replace(plain, value=SignedRecords(of).sign_value(plain))


def test_any_node_takes_what_its_owner_signed_and_gives_it_back() -> None:
    for value in ({"name": "x"}, {}, {"addresses": ["/ip4/192.0.2.1/tcp/1"] * 64}):
        node = SignedRecords(trust(3))
        assert node.validate(record(value)) and msgpack.unpackb(node.strip_value(record(value))) == value


def forged(**changes: Any) -> DHTRecord:
    return replace(record(), **changes)


def unreadable() -> DHTRecord:
    plain = DHTRecord(KEY, msgpack.packb(A_ID), b"\xc1\xc1", time.time() + 1)
    return replace(plain, value=SignedRecords(A).sign_value(plain))


def nested(depth: int) -> DHTRecord:
    """Tuples in tuples, as hivemind packs them: its decoder calls itself for each."""
    value = msgpack.packb([])
    for _ in range(depth):
        value = msgpack.packb(msgpack.ExtType(TUPLE_EXTENSION, b"\x91" + value))
    plain = DHTRecord(KEY, msgpack.packb(A_ID), value, time.time() + 1)
    return replace(plain, value=SignedRecords(A).sign_value(plain))


REFUSED = {
    "foreign key": (forged(value=record(of=B).value), A_ID, "is not signed by"),
    "of another peer": (forged(subkey=msgpack.packb(B_ID)), B_ID, "is not signed by"),
    "of another run": (forged(key=DHTID.generate(source="outerloop/s/roster").to_bytes()), A_ID, "is not signed by"),
    "made to live longer": (forged(expiration_time=time.time() + 59), A_ID, "is not signed by"),
    "too long-lived": (record(life_s=86_400), A_ID, "are allowed"),  # made when this file is read, long before its test
    "for ever": (record(life_s=float("inf")), A_ID, "expires in inf s"),
    "at no time": (record(life_s=float("nan")), A_ID, "expires in nan s"),
    "oversized": (record("x" * MAX_RECORD_BYTES), A_ID, "are allowed"),
    "not signed": (forged(value=msgpack.packb({})), A_ID, "are allowed"),
    "no peer's": (forged(subkey=msgpack.packb("me")), "unknown peer", "without a valid owner"),
    "no subkey": (forged(subkey=DHTProtocol.IS_REGULAR_VALUE), "unknown peer", "without a valid owner"),
    "an odd subkey": (forged(subkey=b"\xc1"), "unknown peer", "without a valid owner"),
    "unreadable": (unreadable(), A_ID, "unreadable"),
    "nested": (nested(1000), A_ID, "unreadable"),
    "nested a little": (nested(2), A_ID, "unreadable"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_everything_else_is_refused_by_name(case: str, caplog: pytest.LogCaptureFixture) -> None:
    bad, who, why = REFUSED[case]
    own = trust(3)
    assert not SignedRecords(own).validate(bad)
    assert own.rejections.counters()["refused_records"] == 1
    [line] = [message for message in caplog.messages if "refused" in message]
    assert f"refused (records) {who}: " in line and why in line


def test_a_peer_outside_the_allow_list_is_refused_and_the_own_record_never() -> None:
    own = trust(3, allow=[A_ID])
    node = SignedRecords(own)
    assert node.validate(record(of=A)) and node.validate(record(of=own))
    assert not node.validate(record(of=B)) and own.rejections.of_kind["records"] == 1


def test_in_an_open_run_an_expelled_peer_is_refused_as_that(caplog: pytest.LogCaptureFixture) -> None:
    own = trust(3)
    own.allow.expel(A_ID)
    assert not SignedRecords(own).validate(record(of=A))
    assert f"refused (records) {A_ID}: a record of a peer that was expelled from the run" in caplog.text


def test_a_newcomer_is_not_named_for_the_signatures_that_others_have_spent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(records, "SIGNATURES_OF_STRANGERS", records.Rate(10, 1.0))
    node = SignedRecords(trust(3))
    for number in range(20):
        node.validate(record(number, of=B))
    assert not node.validate(record(of=A))
    assert EVERYBODY in caplog.text and A_ID not in caplog.text and B_ID not in caplog.text


def test_one_forged_record_ends_an_answer_and_other_wrong_ones_hide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    right = record(of=A), record(of=B)
    wrong = [replace(right[0], expiration_time=math.inf), replace(right[0], subkey=b"\xc1"), unreadable()]
    forged = [replace(right[0], value=bytes(50) + bytes([n]) * 64) for n in range(100)]
    checked: list[Any] = []
    own = trust(3)
    node, check = SignedRecords(own), own.signatures.verify
    monkeypatch.setattr(own.signatures, "verify", lambda *of, **by: bool(checked.append(of)) or check(*of, **by))
    for _ in range(2):
        assert list(node.valid_records([right[0], *wrong, right[1], *forged, record({}, of=B)], by="liar")) == list(
            right
        )
    assert len(checked) == 4, "two right ones, one unreadable, and one forged"


def test_the_log_hears_of_each_name_once_in_a_while_and_the_count_is_of_all(caplog: pytest.LogCaptureFixture) -> None:
    at_s = 0.0
    refusals = RejectionLog(now_s=lambda: at_s)
    for at_s in (0.0, 1.0, 2.0, QUIET_S + 1):  # noqa: B007
        for who in ("a", "b"):
            refusals.note("ballots", who, "no")
    assert [line.rpartition(") ")[2] for line in caplog.messages] == [
        "a: no", "b: no", "a: no, and 2 before that", "b: no, and 2 before that"
    ]  # fmt: skip
    assert refusals.counters()["refused_messages"] == refusals.counters()["refused_ballots"] == 8
    for number in range(3000):
        refusals.note("records", str(number), "no")
    assert len(refusals.logged) <= 1024


async def node(own: AccessControl, *, at: Sequence[str] = ()) -> DHTNode:
    options = {"use_relay": False, "nat_port_map": False, "auto_nat": False}
    return await DHTNode.create(initial_peers=list(at), record_validator=SignedRecords(own), **options)


def test_between_real_nodes_a_forged_record_is_stored_nowhere_and_read_by_nobody() -> None:
    async def scene() -> None:
        first = await node(A)
        second = await node(B, at=[str(one) for one in await first.get_visible_maddrs()])
        stranger = await DHTNode.create(
            initial_peers=[str(one) for one in await first.get_visible_maddrs()], use_relay=False, auto_nat=False
        )
        try:
            names = {"000": A_ID, "001": B_ID}
            records = [Record(f"{n}-{peer}", ["/ip4/192.0.2.1/tcp/1"], "f", 1.0) for n, peer in names.items()]
            rosters = [Roster(dht, run="r", own=own) for dht, own in zip((first, second), records, strict=True)]
            for roster in rosters:
                await roster.publish()
            lie = asdict(Record(f"002-{trust(4).signatures.peer_id}", [], "f", 1.0))
            for subkey in (A_ID, trust(4).signatures.peer_id, None):
                await stranger.store("outerloop/r/roster", lie, expiration_time=time.time() + 65, subkey=subkey)
            for dht in (first, second):
                assert {one.name for one, _ in await read_roster(dht, "r")} == {one.name for one in records}
            assert A.rejections.of_kind["records"] + B.rejections.of_kind["records"] > 0
            await rosters[1].withdraw()  # the tombstone is signed as well
            assert [one for one, _ in await read_roster(first, "r")] == [records[0]]
        finally:
            for dht in (stranger, second, first):
                await dht.shutdown()

    asyncio.run(scene())
