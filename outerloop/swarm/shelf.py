"""What one DHT node holds of each key: never more than others can read, and members' records before strangers'.

    full    the strangers' records that came last go, a new one at once; then members', which only they themselves fill

hivemind's nodes hold any number of records, and whoever asks for a key gets all of them in one message, which cannot
be read beyond 4 MiB. In an open run anybody can make identities and sign records: they can keep new strangers off the
roster while they last, and cannot hide the peers of the run from each other, nor end a read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hivemind.dht.routing import DHTID, Subkey
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue

MOST_BYTES = 3 << 20
BESIDE_BYTES = 128  # of a record in a message: its owner, when it expires, how long it is


class Shelf(DHTLocalStorage):
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
        """As hivemind's, unless there is no room for it."""
        stored = super().store_subkey(key, subkey, value, expiration_time)
        held = self.get(key)
        return bool(stored and held is not None and subkey in held.value)

    def _make_room(self, records: DictionaryDHTValue) -> None:
        sizes = {owner: len(record.value) + BESIDE_BYTES for owner, record in records.data.items()}
        over = sum(sizes.values()) - MOST_BYTES
        for owner in sorted(reversed(sizes), key=self._member) if over > 0 else ():
            if over > 0:
                del records[owner]
                over -= sizes[owner]
