"""The records that one DHT node holds, with limits on the size and number of its keys.

    a key is full                  non-members' newest records are dropped first, so a non-member's new record is
                                   dropped at once. Members' records are dropped only if they alone fill the key
    a peer has too many keys       its new key is refused
    the node has too many keys     a non-member's new key is refused; a member's new key replaces the newest key that
                                   holds no member's record

hivemind's nodes hold any number of records, and send all records of a key in one message, which cannot be read if it
exceeds 4 MiB or has more than MAX_ITEMS records (values.py). In an open run, one machine can create many identities and
sign a record with each. With these limits, such records can keep newcomers off the roster until they expire, but they
can neither hide the run's members from each other nor make a read fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hivemind.dht.routing import DHTID, Subkey
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue

from outerloop.swarm.dht.values import MAX_ITEMS

MAX_KEY_BYTES = 5 << 18
"""Maximum size of the records under one key: 1 KiB from each of 1024 peers, plus overhead."""
BESIDE_BYTES = 128  # overhead per record in a message: owner, expiration time and length
MAX_KEYS = 16
"""Maximum number of keys on one node, i.e. of runs that share the DHT. Their records take up to 20 MiB."""
MAX_KEYS_PER_PEER = 4
"""Maximum number of keys that hold records of one peer, i.e. of runs that the peer takes part in at the same time."""


class BoundedDhtStorage(DHTLocalStorage):
    """hivemind's DHT storage with size limits. `member`: returns whether a peer id belongs to a member of this run."""

    def __init__(self, member: Callable[[Any], bool]) -> None:
        super().__init__()
        self.is_member = member

    def get(self, key: DHTID) -> Any:
        """Return the records stored under a key, or None if no record is stored there.

        Drop records above the limits first, because hivemind's searches may have added records.
        """
        held = super().get(key)
        if held is not None and isinstance(held.value, DictionaryDHTValue):
            self._make_room(held.value)
        return held

    def store_subkey(self, key: DHTID, subkey: Subkey, value: bytes, expiration_time: float) -> bool:
        """Store a record if it is newer than the stored one and there is room for it. Return whether it was stored."""
        if not self._is_newer(key, subkey, expiration_time) or not self._has_room(key, subkey):
            return False
        stored = super().store_subkey(key, subkey, value, expiration_time)
        held = self.get(key)
        return bool(stored and held is not None and subkey in held.value)

    def _is_newer(self, key: DHTID, subkey: Subkey, expiration_time: float) -> bool:
        """Return whether a record is newer than the stored one.

        This filters out repeated records; hivemind's storage would add an entry for each of them.
        """
        held = self._owners(key).get(subkey)
        return held is None or expiration_time > held.expiration_time

    def _has_room(self, key: DHTID, subkey: Subkey) -> bool:
        """Return whether a record of the owner `subkey` may be stored under a key.

        If a member adds a key to a full node, the newest key without a member's record is dropped.
        """
        if subkey in self._owners(key):
            return True
        if sum(subkey in self._owners(other) for other in list(self.data)) >= MAX_KEYS_PER_PEER:
            return False
        if key in self or len(self) < MAX_KEYS:
            return True
        strangers = [key for key in self.data if not any(map(self.is_member, self._owners(key).data))]
        if not strangers or not self.is_member(subkey):
            return False
        del self[strangers[-1]]
        return True

    def _owners(self, key: DHTID) -> DictionaryDHTValue:
        """Return a mapping from owner to record for the records under a key; empty if this node holds none."""
        held = super().get(key)
        return held.value if held is not None and isinstance(held.value, DictionaryDHTValue) else DictionaryDHTValue()

    def _make_room(self, records: DictionaryDHTValue) -> None:
        size = size_of(records)

        def is_over() -> bool:
            return size > MAX_KEY_BYTES or len(records.data) > MAX_ITEMS

        for owner in sorted(reversed(records.data), key=self.is_member) if is_over() else ():
            if is_over():
                size -= _size(records.data[owner].value)
                del records[owner]


def size_of(records: DictionaryDHTValue) -> int:
    """Return an upper bound on the size of these records in a message, in bytes."""
    return sum(_size(record.value) for _, record in records.items())


def _size(content: bytes) -> int:
    return len(content) + BESIDE_BYTES
