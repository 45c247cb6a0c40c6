"""A value of the DHT as it travels: hivemind's dictionary of records, read without hivemind's decoder.

    extension 0x50 | [largest size, when the last expires, [[owner, content, when it expires], ...]]

hivemind's decoder follows whatever extensions are in there, as deep as they go, and believes the first two. Here the
records are all that counts, and anything else than a flat list of them is nothing.
"""

from __future__ import annotations

import msgpack

from outerloop.swarm.validation import MAX_PEERS

DICTIONARY = 0x50  # hivemind's number for it
MOST_ITEMS = 2 * MAX_PEERS  # strangers' beside those of a run
Item = tuple[str, bytes, float]
"""(owner, content with its signature, when it expires)."""


def items_of(packed: bytes) -> list[Item]:
    """The records in a value that another node told; none where it is no such value."""
    try:
        outer = msgpack.unpackb(packed, max_array_len=0, max_map_len=0)
        if not isinstance(outer, msgpack.ExtType) or outer.code != DICTIONARY:
            return []
        _, _, items = msgpack.unpackb(outer.data, max_array_len=MOST_ITEMS, max_map_len=0)
    except (ValueError, TypeError):  # whatever msgpack makes of other bytes
        return []
    if not isinstance(items, list):
        return []
    return [(item[0], item[1], item[2]) for item in items if is_item(item)]


def is_item(item: object) -> bool:
    """Return whether this is what a record is told as."""
    return isinstance(item, list) and list(map(type, item)) == [str, bytes, float]
