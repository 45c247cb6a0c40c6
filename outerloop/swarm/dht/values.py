"""Decode a DHT value: hivemind's dictionary of records, without hivemind's decoder.

    extension 0x50 | [largest size, expiration of the last record, [[owner, content, expiration time], ...]]

hivemind's decoder follows nested extensions to any depth, and trusts the first two entries. This decoder reads only the
records. It returns no records unless the value contains a flat list of them.
"""

from __future__ import annotations

import msgpack

from outerloop.swarm.validation import MAX_PEERS

DICTIONARY = 0x50  # hivemind's extension code of a dictionary
MAX_ITEMS = 2 * MAX_PEERS  # leaves room for records of non-members in addition to those of a run
Item = tuple[str, bytes, float]
"""A record: (owner, content with its signature, expiration time)."""


def items_of(packed: bytes) -> list[Item]:
    """Return the records in a value from another node; an empty list if the value is malformed."""
    try:
        outer = msgpack.unpackb(packed, max_array_len=0, max_map_len=0)
        if not isinstance(outer, msgpack.ExtType) or outer.code != DICTIONARY:
            return []
        _, _, items = msgpack.unpackb(outer.data, max_array_len=MAX_ITEMS, max_map_len=0)
    except (ValueError, TypeError):  # unpackb raises these errors for malformed bytes
        return []
    if not isinstance(items, list):
        return []
    return [(item[0], item[1], item[2]) for item in items if is_item(item)]


def is_item(item: object) -> bool:
    """Return whether `item` has the form in which a record is sent."""
    return isinstance(item, list) and list(map(type, item)) == [str, bytes, float]
