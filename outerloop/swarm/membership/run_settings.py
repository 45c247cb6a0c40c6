"""The settings that must be equal on every peer of a run, as others can compare them without being told them all.

    packed    for each setting 4 bytes of sha256(key) and 4 of sha256(value), in the order of the former

It travels in the roster record (8 bytes a setting). Whoever finds a difference asks the other peer what stands behind
it by the hash of the key, which also finds settings that only one of the two has. What it tells is a stranger's word:
short, of one line, and of the key that was asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

HASH_BYTES = 4
ENTRY_BYTES = 2 * HASH_BYTES
MAX_SETTINGS = 512
MAX_TEXT = 128
"""Characters of a key or a value that a message shows."""
NOT_TYPED = ("_target_", "lanes")
"""Ends of keys that nobody types: they follow from another option."""


class RunSettings:
    """One peer's, `values`: key -> value as it is typed."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = dict(values or {})
        self._keys = {short_hash(key): key for key in self._values}

    @property
    def packed(self) -> bytes:
        """What the roster record shows."""
        entries = sorted((hashed, short_hash(self._values[key])) for hashed, key in self._keys.items())
        return b"".join(hashed + value for hashed, value in entries[:MAX_SETTINGS])

    def differing(self, packed: bytes) -> list[bytes]:
        """Return the hashes of the keys whose values differ from a peer's, or that one of the two lacks.

        The recipe alone if that differs, since the others follow from it; an axis before what is in it; what only the
        other peer has comes last. An option that follows from one before it (inner.optimizer.lr from inner.lr: the last
        word and both values are the same) is left out.
        """
        ours, theirs = entries_of(self.packed), entries_of(packed)
        differ = {hashed for hashed in ours.keys() | theirs.keys() if ours.get(hashed) != theirs.get(hashed)}
        if (recipe := short_hash("recipe")) in differ:
            return [recipe]
        known: dict[Any, bytes] = {}
        for hashed in sorted(differ & self._keys.keys(), key=lambda hashed: in_order(self._keys[hashed])):
            last = self._keys[hashed].rpartition(".")[2]
            known.setdefault((last, ours[hashed], theirs.get(hashed)), hashed)
        return [*known.values(), *sorted(differ - self._keys.keys())]

    def tell(self, hashed: bytes) -> dict[str, str]:
        """Return what another peer is told of a setting by the hash of its key; nothing where there is none."""
        key = self._keys.get(hashed)
        return {} if key is None else {"key": key[:MAX_TEXT], "value": self._values[key][:MAX_TEXT]}


def short_hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:HASH_BYTES]


def entries_of(packed: bytes) -> dict[bytes, bytes]:
    """Hash of a key -> hash of its value."""
    starts = range(0, len(packed), ENTRY_BYTES)
    return {packed[i : i + HASH_BYTES]: packed[i + HASH_BYTES : i + ENTRY_BYTES] for i in starts}


def in_order(key: str) -> tuple[bool, int, str]:
    """The recipe, then an axis before what is in it, then by name."""
    return key != "recipe", key.count("."), key


def well_formed(packed: Any) -> bool:
    """Whether a stranger's record may show this as its settings."""
    return isinstance(packed, bytes) and len(packed) % ENTRY_BYTES == 0 and len(packed) <= MAX_SETTINGS * ENTRY_BYTES


def told(value: Any, hashed: bytes) -> dict[str, str]:
    """Check what a stranger told of a setting. Raises ValueError when it is something else than was asked for."""
    if not isinstance(value, dict) or (value and set(value) != {"key", "value"}):
        raise ValueError("a setting is told as its key and its value")
    if not all(isinstance(text, str) and len(text) <= MAX_TEXT and text.isprintable() for text in value.values()):
        raise ValueError("a setting is told in short texts of one line")
    if value and short_hash(value["key"]) != hashed:
        raise ValueError("another setting than was asked for")
    return value


def difference(ours: Mapping[str, str], theirs: Mapping[str, str] | None, peer: str) -> tuple[str, str]:
    """Return (what differs, what to type here), the second empty where nobody types it or the peer did not tell it."""
    key = (ours or theirs or {}).get("key", "a setting")
    here = ours["value"] if ours else "not set"
    there = "another value" if theirs is None else theirs["value"] if theirs else "not set"
    typed = f"{key}={there}" if theirs and not key.endswith(NOT_TYPED) else ""
    return f"{key} is {here} here and {there} at {peer}", typed
