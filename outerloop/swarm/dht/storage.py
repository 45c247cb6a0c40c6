"""What one DHT node holds: never more of a key than others can read, nor more keys than there are runs.

    key full     the newest records of non-members go first, so that a new one is dropped at once; members' records go
                 only when members alone fill the key
    too many     of one peer, its new key is refused; of all, a non-member's is, and a member's takes the place of the
    keys         newest one that holds no member's record

hivemind's nodes hold any number of records, and whoever asks for a key gets all of them in one message, which cannot
be read beyond 4 MiB. In an open run anybody can make identities and sign records: they can keep other newcomers off the
roster while they last, and can neither hide the peers that have formed from each other nor end a read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hivemind.dht.routing import DHTID, Subkey
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue

MOST_BYTES = 5 << 18
"""Of one key: records of 1 KiB of 1024 peers, with what is beside them."""
BESIDE_BYTES = 128  # of a record in a message: its owner, when it expires, how long it is
MOST_KEYS = 16
"""Runs that share a DHT, each with one key; 20 MiB in all."""
MOST_KEYS_OF_ONE = 4
"""Runs that one peer takes part in at the same time."""


class BoundedDhtStorage(DHTLocalStorage):
    """`member`: whether a peer id is of one that this run counts on."""

    def __init__(self, member: Callable[[Any], bool]) -> None:
        super().__init__()
        self._member = member

    def get(self, key: DHTID) -> Any:
        """As hivemind's, with no more than there is room for: its searches write into what lies here."""
        held = super().get(key)
        if held is not None and isinstance(held.value, DictionaryDHTValue):
            self._make_room(held.value)
        return held

    def store_subkey(self, key: DHTID, subkey: Subkey, value: bytes, expiration_time: float) -> bool:
        """As hivemind's, unless there is no room for it or it is not newer."""
        if not self._is_newer(key, subkey, expiration_time) or not self._has_room(key, subkey):
            return False
        stored = super().store_subkey(key, subkey, value, expiration_time)
        held = self.get(key)
        return bool(stored and held is not None and subkey in held.value)

    def _is_newer(self, key: DHTID, subkey: Subkey, expiration_time: float) -> bool:
        """hivemind's storage keeps a note of everything that it is asked to store, also of what it has."""
        held = self._owners(key).get(subkey)
        return held is None or expiration_time > held.expiration_time

    def _has_room(self, key: DHTID, subkey: Subkey) -> bool:
        """Whether a record may lie under a key; the key of a stranger may go for one of a member."""
        if subkey in self._owners(key):
            return True
        if sum(subkey in self._owners(other) for other in list(self.data)) >= MOST_KEYS_OF_ONE:
            return False
        if key in self or len(self) < MOST_KEYS:
            return True
        strangers = [one for one in self.data if not any(map(self._member, self._owners(one).data))]
        if not strangers or not self._member(subkey):
            return False
        del self[strangers[-1]]
        return True

    def _owners(self, key: DHTID) -> DictionaryDHTValue:
        """The records of a key by owner; none where it holds none."""
        held = super().get(key)
        return held.value if held is not None and isinstance(held.value, DictionaryDHTValue) else DictionaryDHTValue()

    def _make_room(self, records: DictionaryDHTValue) -> None:
        over = size_of(records) - MOST_BYTES
        for owner in sorted(reversed(records.data), key=self._member) if over > 0 else ():
            if over > 0:
                over -= _size(records.data[owner].value)
                del records[owner]


def size_of(records: DictionaryDHTValue) -> int:
    """An upper bound of the bytes that these records take in a message."""
    return sum(_size(record.value) for _, record in records.items())


def _size(content: bytes) -> int:
    return len(content) + BESIDE_BYTES
