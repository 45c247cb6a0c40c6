"""However many identities sign records of a key: it can be read, and the run's peers are in it."""

from __future__ import annotations

import time

from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.utils import MSGPackSerializer
from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop.swarm.dht.records import MAX_RECORD_BYTES
from outerloop.swarm.dht.storage import MAX_KEY_BYTES, MAX_KEYS, MAX_KEYS_PER_PEER, BoundedDhtStorage
from outerloop.swarm.dht.values import MAX_ITEMS, items_of
from tests.support.swarm.loopback import Make

KEY = DHTID.generate(source="outerloop/r/roster")
READABLE_BYTES = 4 << 20
MEMBERS = {"a", "b", "c"}


def shelf() -> BoundedDhtStorage:
    return BoundedDhtStorage(MEMBERS.__contains__)


def put(
    at: BoundedDhtStorage, owner: str, *, size: int = MAX_RECORD_BYTES, life_s: float = 60.0, key: DHTID = KEY
) -> bool:
    return at.store_subkey(key, owner, bytes(size), time.time() + life_s)


def owners(at: BoundedDhtStorage) -> set[str]:
    held = at.get(KEY)
    assert held is not None and len(MSGPackSerializer.dumps(held.value)) < READABLE_BYTES
    return set(held.value.data)


def test_500_strangers_do_not_hide_the_members_nor_make_the_key_unreadable() -> None:
    at = shelf()
    assert put(at, "a", size=500) and put(at, "first")
    strangers = [put(at, f"stranger {number}") for number in range(600)]
    assert 0 < sum(strangers) < 500 and not strangers[-1]
    assert all(put(at, name, size=500) for name in "bc"), "members always have room"
    assert MEMBERS | {"first"} <= owners(at)
    assert put(at, "first", life_s=65) and put(at, "a", life_s=65), "who is there can refresh"
    assert put(at, "stranger 599", key=DHTID.generate(source="another run")), "each key by itself"


def test_more_small_records_than_a_reader_accepts_do_not_make_the_key_unreadable() -> None:
    at = shelf()
    assert put(at, "a", size=500)
    stored = [put(at, f"stranger {number}", size=1) for number in range(MAX_ITEMS + 100)]
    assert put(at, "b", size=500) and sum(stored) == MAX_ITEMS - 1
    read = {owner for owner, _, _ in items_of(MSGPackSerializer.dumps(at.get(KEY).value))}
    assert len(read) == MAX_ITEMS and {"a", "b", "stranger 0"} <= read


def test_a_small_swarm_notices_nothing() -> None:
    at = shelf()
    assert all(put(at, f"{number}", size=1000) for number in range(1000)) and len(owners(at)) == 1000
    assert at.get(DHTID.generate(source="nothing")) is None
    assert at.store(KEY, b"", time.time() + 70, subkey="a") and "a" in owners(at), "a tombstone, as nodes store it"


def test_records_that_a_search_of_the_node_itself_caches_are_bounded_as_well() -> None:
    """hivemind merges what other nodes tell into the dictionary that lies here."""
    at = shelf()
    put(at, "a")
    held = at.get(KEY)
    for number in range(1000):
        held.value.store(f"stranger {number}", bytes(MAX_RECORD_BYTES), time.time() + 60)
    held.value.store("b", b"late", time.time() + 60)
    assert {"a", "b", "stranger 0"} <= owners(at) and "stranger 999" not in owners(at)
    many = DictionaryDHTValue()
    for number in range(1000):
        many.store(f"stranger {number}", bytes(MAX_RECORD_BYTES), time.time() + 90)
    at.store(KEY, many, time.time() + 90)
    assert owners(at)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([*"abc", *map(str, range(40))]), st.integers(0, 400_000)), max_size=60))
def test_never_more_than_fits_and_members_before_strangers(stores: list[tuple[str, int]]) -> None:
    at, last = shelf(), {}
    for number, (owner, size) in enumerate(stores):
        stored = at.store_subkey(KEY, owner, bytes(size), time.time() + 60 + number)
        if owner in MEMBERS:
            assert stored
            last[owner] = size
        held = at.get(KEY)
        assert held is None or sum(len(one.value) for one in held.value.data.values()) <= MAX_KEY_BYTES
    if stores and last:
        assert {owner: len(at.get(KEY).value.get(owner).value) for owner in last} == last


def test_keys_are_few_of_one_peer_and_of_all_and_a_member_always_finds_a_place() -> None:
    at = shelf()
    keys = [DHTID.generate(source=str(number)) for number in range(2 * MAX_KEYS)]
    assert [put(at, "greedy", key=key, size=1) for key in keys] == [True] * MAX_KEYS_PER_PEER + [False] * (
        len(keys) - MAX_KEYS_PER_PEER
    )
    assert put(at, "a", key=keys[0], size=1), "a member is at the oldest"
    stored = [put(at, f"stranger {number}", key=key, size=1) for number, key in enumerate(keys)]
    assert sum(stored) == len(at) == MAX_KEYS and not stored[-1]
    assert put(at, "b", key=keys[-1], size=1) and len(at) == MAX_KEYS
    assert set(at.data) == {*keys[: MAX_KEYS - 1], keys[-1]}, "the newest of the strangers' went"


def test_the_same_again_leaves_no_trace() -> None:
    at, until = shelf(), time.time() + 60
    assert at.store_subkey(KEY, "a", b"", until)
    assert not any(at.store_subkey(KEY, "a", b"", until - number) for number in range(1000))
    assert len(at.expiration_heap) == len(at.get(KEY).value.expiration_heap) == 1


def test_a_peer_has_such_a_shelf_and_counts_on_its_members(make: Make) -> None:
    peer = make(peers=1)
    peer.join()
    held = peer.node.dht.protocol.storage
    assert isinstance(held, BoundedDhtStorage) and held.is_member(peer.node.peer_id) and not held.is_member("stranger")
