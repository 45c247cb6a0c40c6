"""Decode a DHT value: hivemind's dictionary of records, without hivemind's decoder.

    extension 0x50 | [largest size, expiration of the last record, [[owner, content, expiration time], ...]]

hivemind's decoder follows nested extensions to any depth, and trusts the first two entries. This decoder reads only the
records, and only if they form a flat list.
"""

from __future__ import annotations

import msgpack

from outerloop.swarm.validation import MAX_PEERS

DICTIONARY = 0x50  # hivemind's extension code for a dictionary
MAX_ITEMS = 2 * MAX_PEERS  # leaves room for non-members' records in addition to a full run's
Item = tuple[str, bytes, float]
"""A record: (owner, content with its signature, expiration time)."""


def items_of(packed: bytes) -> list[Item]:
    """Decode a value from another node. Return its well-formed records, or [] if the value is malformed."""
    try:
        outer = msgpack.unpackb(packed, max_array_len=0, max_map_len=0)
        if not isinstance(outer, msgpack.ExtType) or outer.code != DICTIONARY:
            return []
        _, _, items = msgpack.unpackb(outer.data, max_array_len=MAX_ITEMS, max_map_len=0)
    except (ValueError, TypeError):  # raised for malformed bytes
        return []
    if not isinstance(items, list):
        return []
    return [(item[0], item[1], item[2]) for item in items if is_item(item)]


def is_item(item: object) -> bool:
    """Return whether `item` has the form of a record: [str, bytes, float]."""
    return isinstance(item, list) and list(map(type, item)) == [str, bytes, float]
