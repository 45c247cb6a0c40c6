"""What strangers and liars ask of a DHT node, and tell it, costs little and reaches no reader.

Where hivemind's own node falls for it, the same is done to one: the attack is real.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.p2p import P2PHandlerError, PeerID
from hivemind.proto import dht_pb2
from hivemind.utils import MSGPackSerializer
from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop.swarm.access.access_control import AllowList
from outerloop.swarm.access.signatures import PEER_ID_PREFIX
from outerloop.swarm.dht import protocol, records
from outerloop.swarm.dht.protocol import REQUESTS, node_id_of
from outerloop.swarm.dht.storage import MAX_KEY_BYTES, MAX_KEYS_PER_PEER
from outerloop.swarm.dht.values import items_of
from tests.support.swarm.dht_scene import KEY, Wire, id_of, peer, signed, store_of, trust

A, B, STRANGER = 1, 2, 9
LISTED = [id_of(A), id_of(B)]


def near(key: DHTID, count: int) -> list[bytes]:
    """Node ids closer to a key than anybody's hash."""
    return [DHTID(key ^ (number + 1)).to_bytes() for number in range(count)]


def find(*keys: bytes, node_id: bytes = b"") -> dht_pb2.FindRequest:
    return dht_pb2.FindRequest(keys=keys, peer=dht_pb2.NodeInfo(node_id=node_id))


def ping(node_id: bytes) -> dht_pb2.PingRequest:
    return dht_pb2.PingRequest(peer=dht_pb2.NodeInfo(node_id=node_id))


REQUESTS_OF_A_STRANGER = {
    "rpc_ping": ping(near(KEY, 1)[0]),
    "rpc_find": find(*[KEY.to_bytes()] * 60_000),
    "rpc_store": store_of(*[signed(A)] * 20),
}


@pytest.mark.parametrize("rpc", REQUESTS_OF_A_STRANGER)
def test_a_listed_node_refuses_a_stranger_before_it_looks_at_its_request(rpc: str) -> None:
    async def act() -> None:
        wire, own = Wire(), trust(A, allow=LISTED)
        node = await wire.node(own)
        node.storage.get = node.records.accepts = node.update_routing_table = None  # type: ignore[method-assign]
        for request in (REQUESTS_OF_A_STRANGER[rpc], None):  # not even what kind of thing it is
            with pytest.raises(P2PHandlerError, match="NotListed"):
                await wire.call(STRANGER, id_of(A), rpc, request)
        assert own.rejections.of_kind["outsiders"] == 2 and not node.routing_table.uid_to_peer_id

    asyncio.run(act())


def test_whoever_calls_itself_41_nodes_is_one_and_the_one_that_its_key_gives() -> None:
    async def act() -> None:
        wire = Wire()
        own = trust(A)
        guarded, plain = await wire.node(own), await wire.plain(trust(B))
        for node_id in near(KEY, 41):
            await wire.call(STRANGER, id_of(A), "rpc_ping", ping(node_id))
            await wire.call(STRANGER, id_of(B), "rpc_ping", ping(node_id))
        await asyncio.sleep(0)
        assert len(plain.routing_table.uid_to_peer_id) == 41, "hivemind's node believes it"
        assert guarded.routing_table.uid_to_peer_id == {node_id_of(peer(STRANGER)): peer(STRANGER)}

    asyncio.run(act())


def test_a_stranger_is_no_candidate_whoever_names_it() -> None:
    """Not by its own answer, nor by the list of a listed peer that has none itself."""

    async def act() -> None:
        wire = Wire()
        node, other = await wire.node(trust(A, allow=LISTED)), await wire.node(trust(B))
        await wire.call(STRANGER, id_of(B), "rpc_ping", ping(near(KEY, 1)[0]))
        assert other.routing_table.uid_to_peer_id == {node_id_of(peer(STRANGER)): peer(STRANGER)}
        [(value, nearest)] = (await node.call_find(peer(B), [KEY])).values()  # type: ignore[union-attr]
        assert value is None and nearest == {}
        await node.update_routing_table(None, peer(STRANGER))
        assert set(node.routing_table.uid_to_peer_id) == {node_id_of(peer(B))}

    asyncio.run(act())


def test_nearest_nodes_in_an_answer_are_bounded_and_well_formed() -> None:
    async def act() -> None:
        wire = Wire()
        node = await wire.node(trust(A))
        ids = [b"", bytes(1 << 16), bytes(38), *(peer(number).to_bytes() for number in range(10, 60))]
        await lie(wire, nearest_peer_ids=ids, nearest_node_ids=near(KEY, len(ids)))
        [(_, nearest)] = (await node.call_find(peer(B), [KEY])).values()  # type: ignore[union-attr]
        assert 0 < len(nearest) <= node.bucket_size
        assert all(node_id == node_id_of(one) for node_id, one in nearest.items())

    asyncio.run(act())


@pytest.mark.parametrize(
    "keys",
    [
        [KEY.to_bytes()] * 60_000,
        [KEY.to_bytes()] * 2,
        [DHTID.generate(source=str(number)).to_bytes() for number in range(2)],
        [b""],
        [bytes(21)],
        [],
    ],
    ids=["60,000 of one", "twice", "two", "empty", "too long", "none"],
)
def test_a_find_has_one_key(keys: list[bytes]) -> None:
    async def act() -> None:
        wire, own = Wire(), trust(A)
        node = await wire.node(own)
        node.storage.get = None  # type: ignore[method-assign]
        with pytest.raises(P2PHandlerError, match="one valid key"):
            await wire.call(B, id_of(A), "rpc_find", find(*keys))
        assert own.rejections.of_kind["requests"] == 1

    asyncio.run(act())


def test_a_store_has_one_record_and_all_of_it() -> None:
    async def act() -> None:
        wire = Wire()
        node = await wire.node(trust(A))
        short = store_of(signed(B))
        del short.values[:]
        for request in (store_of(signed(B), signed(3)), store_of(), short):
            with pytest.raises(P2PHandlerError, match="one complete record"):
                await wire.call(B, id_of(A), "rpc_store", request)
        assert not node.storage.data
        response = await wire.call(B, id_of(A), "rpc_store", store_of(signed(B)))
        assert list(response.store_ok) == [True]

    asyncio.run(act())


def test_only_signed_records_by_owner_are_stored_and_nothing_in_a_cache() -> None:
    async def act() -> None:
        wire = Wire()
        node = await wire.node(trust(A))
        whole = DictionaryDHTValue()
        whole.store(id_of(B), signed(B).value, time.time() + 60)
        odd = signed(B)
        bad = [
            store_of(signed(B), in_cache=True),
            store_of(_changed(odd, subkey=b"", value=MSGPackSerializer.dumps(whole))),
            store_of(_changed(odd, subkey=MSGPackSerializer.dumps(None))),
            store_of(_changed(odd, key=bytes(19))),
            store_of(_changed(odd, expiration_time=math.inf)),
            store_of(signed(B, subkey=b"\xda\x00\x34" + id_of(B).encode())),
        ]
        for request in bad:
            response = await wire.call(B, id_of(A), "rpc_store", request)
            assert list(response.store_ok) == [False], request
        assert not node.storage.data and not node.cache.data

    asyncio.run(act())


def _changed(record: Any, **changes: Any) -> Any:
    return SimpleNamespace(**{**vars(record), **changes})


def test_an_answer_is_no_larger_than_one_roster_however_much_is_stored() -> None:
    async def act() -> None:
        wire = Wire()
        node = await wire.node(trust(A), members=[id_of(B)])
        for number in range(200):
            node.storage.store_subkey(KEY, f"{number}", bytes(8000), time.time() + 60)
        [result] = (await wire.call(B, id_of(A), "rpc_find", find(KEY.to_bytes()))).results
        assert MAX_KEY_BYTES // 2 < len(result.value) <= MAX_KEY_BYTES

    asyncio.run(act())


def test_requests_beyond_the_budget_are_refused_and_a_member_s_are_not_spent_by_strangers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "REQUESTS_OF_STRANGERS", protocol.Rate(2 * REQUESTS.burst, 0.0))

    async def act() -> None:
        wire, own = Wire(), trust(A)
        await wire.node(own, members=[id_of(B)])
        answered = [await refused(wire, number, find(KEY.to_bytes())) for number in (9, 10, 11) for _ in range(100)]
        assert answered.count("") == 2 * REQUESTS.burst
        assert any("requests per second" in why for why in answered) and own.rejections.of_kind["requests"] > 0
        assert not any([await refused(wire, B, find(KEY.to_bytes())) for _ in range(int(REQUESTS.burst))])

    asyncio.run(act())


def test_bytes_beyond_the_budget_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "BYTES", protocol.Rate(100_000, 0.0))

    async def act() -> None:
        wire = Wire()
        node = await wire.node(trust(A))
        for number in range(5):
            node.storage.store_subkey(KEY, f"{number}", bytes(8000), time.time() + 60)
        why = [await refused(wire, B, find(KEY.to_bytes())) for _ in range(5)]
        assert why[:2] == ["", ""] and "bytes per second" in why[3], "40 kB each time"
        assert "bytes per second" in await refused(wire, 3, find(bytes(200_000)))

    asyncio.run(act())


async def refused(wire: Wire, number: int, request: Any) -> str:
    try:
        await wire.call(number, id_of(A), "rpc_find", request)
    except P2PHandlerError as error:
        return str(error)
    return ""


def test_signatures_are_checked_after_all_else_once_a_record_and_so_many_of_one_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records, "SIGNATURES", protocol.Rate(20, 0.0))
    monkeypatch.setattr(protocol, "REQUESTS", protocol.Rate(1000, 0.0))

    async def act() -> None:
        wire, own = Wire(), trust(A)
        node = await wire.node(own)
        checked = count_checks(node)
        good, forged = signed(3), [_changed(signed(4), value=bytes(50) + bytes([n]) * 64) for n in range(100)]
        for record in (good, good, _changed(good, expiration_time=math.inf), _changed(good, subkey=b"\xc1")):
            await wire.call(B, id_of(A), "rpc_store", store_of(record))
        assert len(checked) == 1, "the same again, and what is wrong at first sight, is not checked"
        for record in forged[:96]:
            await wire.call(B, id_of(A), "rpc_store", store_of(record))
        assert len(checked) == 20, "not 97"
        await wire.call(5, id_of(A), "rpc_store", store_of(signed(5)))
        assert len(checked) == 21 and node.storage.get(KEY).value.get(id_of(5)), "another's are"
        assert own.rejections.of_kind["records"] == 2 + 96

    asyncio.run(act())


def count_checks(node: Any) -> list[str]:
    checked: list[str] = []
    signatures = node.records.trust.signatures

    class Counted:
        sign = signatures.sign
        peer_id = signatures.peer_id

        def verify(self, *args: Any, by: str) -> bool:
            checked.append(by)
            return signatures.verify(*args, by=by)

    object.__setattr__(node.records.trust, "signatures", Counted())
    return checked


async def lie(wire: Wire, number: int = B, **result: Any) -> None:
    """Let a node answer every find with this."""

    async def rpc_find(request: Any, context: Any) -> Any:
        return dht_pb2.FindResponse(results=[dht_pb2.FindResult(**result) for _ in request.keys])

    wire.nodes[id_of(number)] = SimpleNamespace(rpc_find=rpc_find)


def told(*entries: Any, latest: float = math.inf) -> dict[str, Any]:
    packed = msgpack.packb([math.inf, latest, list(entries)])
    value = msgpack.packb(msgpack.ExtType(0x50, packed))
    return {"type": dht_pb2.FOUND_DICTIONARY, "value": value, "expiration_time": latest}


def entry(record: Any) -> list[Any]:
    return [msgpack.unpackb(record.subkey), record.value, record.expiration_time]


def test_an_empty_value_that_never_expires_is_none_and_expiries_are_those_of_right_records() -> None:
    async def act() -> None:
        wire = Wire()
        guarded, plain = await wire.node(trust(A)), await wire.plain(trust(3))
        await lie(wire, **told())
        [(value, _)] = (await plain.call_find(peer(B), [KEY])).values()
        assert value.expiration_time == math.inf and not value.value, "hivemind's node believes it"
        [(value, _)] = (await guarded.call_find(peer(B), [KEY])).values()  # type: ignore[union-attr]
        assert value is None
        early, late, lies = signed(4, life_s=30), signed(5, life_s=40), _changed(signed(6), expiration_time=math.inf)
        await lie(wire, **told(entry(early), entry(lies), entry(late), ["x", b"", math.inf], 3, [1]))
        [(value, _)] = (await guarded.call_find(peer(B), [KEY])).values()  # type: ignore[union-attr]
        assert value is not None and set(value.value.data) == {id_of(4), id_of(5)}, "one bad record hides no other"
        assert value.expiration_time == late.expiration_time
        await lie(wire, type=dht_pb2.FOUND_REGULAR, value=b"x", expiration_time=math.inf)
        [(value, _)] = (await guarded.call_find(peer(B), [KEY])).values()  # type: ignore[union-attr]
        assert value is None

    asyncio.run(act())


def test_a_subkey_in_an_odd_packing_does_not_make_a_key_unreadable() -> None:
    """hivemind stores it by what it unpacks to, and packs it the usual way for readers: no signature holds then."""

    async def act() -> None:
        wire = Wire()
        odd = b"\xda\x00\x34" + id_of(B).encode()
        assert msgpack.unpackb(odd) == id_of(B) and odd != msgpack.packb(id_of(B))
        node = await wire.node(trust(A))
        reader = await wire.node(trust(3))
        for record, taken in ((signed(4), True), (signed(B, subkey=odd), False)):
            assert list((await wire.call(B, id_of(A), "rpc_store", store_of(record))).store_ok) == [taken]
        [(value, _)] = (await reader.call_find(peer(A), [KEY])).values()  # type: ignore[union-attr]
        assert value is not None and set(value.value.data) == {id_of(4)} and node.storage.get(KEY)

    asyncio.run(act())


def test_one_identity_does_not_keep_any_number_of_keys() -> None:
    async def act() -> None:
        wire = Wire()
        node, plain = await wire.node(trust(A)), await wire.plain(trust(3))
        many = [signed(B, key=DHTID.generate(source=str(number))) for number in range(48)]
        for record in many:
            for to in (A, 3):
                await wire.call(B, id_of(to), "rpc_store", store_of(record))
        assert len(plain.storage.data) == len(many) and len(node.storage.data) == MAX_KEYS_PER_PEER

    asyncio.run(act())


def test_the_routing_table_is_bounded_however_many_identities_ask() -> None:
    async def act() -> None:
        wire = Wire()
        node, plain = await wire.node(trust(A)), await wire.plain(trust(B))
        for number in range(3000):
            stranger = PeerID(PEER_ID_PREFIX + hashlib.sha256(bytes([number % 256, number // 256])).digest())
            await node.update_routing_table(None, stranger)
            await plain.update_routing_table(node_id_of(stranger), stranger)
        table, bucket = node.routing_table, node.bucket_size
        assert len(plain.routing_table.uid_to_peer_id) == 3000 and 1000 < len(table.uid_to_peer_id) < 1500
        assert all(len(one.replacement_nodes) <= bucket for one in table.buckets)

    asyncio.run(act())


def test_an_expelled_peer_leaves_the_table_when_it_is_met_again() -> None:
    async def act() -> None:
        wire, own = Wire(), trust(A, allow=LISTED)
        node = await wire.node(own)
        await node.update_routing_table(None, peer(B))
        assert peer(B) in node.routing_table
        object.__setattr__(own, "allow", AllowList([id_of(A)]))
        await node.update_routing_table(None, peer(B))
        assert peer(B) not in node.routing_table

    asyncio.run(act())


VALUES = st.recursive(
    st.none() | st.integers(-5, 1 << 40) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=60) | VALUES.map(msgpack.packb), st.lists(VALUES, max_size=4))
def test_whatever_another_node_tells_is_a_list_of_records_or_none(raw: bytes, items: list[Any]) -> None:
    mixed = msgpack.packb([1, 2.0, [["x", b"y", 3.0], *items]])
    for packed in (raw, msgpack.packb(msgpack.ExtType(0x50, raw)), msgpack.packb(msgpack.ExtType(0x50, mixed))):
        assert all(list(map(type, one)) == [str, bytes, float] for one in items_of(packed))


def test_a_deep_or_long_value_is_none() -> None:
    deep = msgpack.packb(msgpack.ExtType(0x50, b""))
    for _ in range(2000):
        deep = msgpack.packb(msgpack.ExtType(0x50, deep))
    long = msgpack.packb([1, 2.0, [[str(number), b"", 1.0] for number in range(5000)]])
    assert items_of(deep) == [] and items_of(msgpack.packb(msgpack.ExtType(0x50, long))) == []
