"""The settings that must be equal on all peers of a run, packed as comparable hashes.

    packed    for each setting: 4 bytes of sha256(key), then 4 bytes of sha256(value); sorted by the hash of the key

The packed settings are part of the roster record (8 bytes per setting). A peer that finds a difference asks the other
peer for that setting by the hash of its key. This also works for settings that only one of the two peers has. The
answer is untrusted: it must be short, contain no line break, and be about the requested key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

HASH_BYTES = 4
ENTRY_BYTES = 2 * HASH_BYTES
MAX_SETTINGS = 512
MAX_TEXT = 128
"""Maximum number of characters of a key or a value that are sent and shown."""
NOT_TYPED = ("_target_", "lanes")
"""Suffixes of the keys that users do not set themselves, because another option determines their values."""


class RunSettings:
    """The settings of one peer. `values`: key -> value, as the user would type it on the command line."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = dict(values or {})
        self._keys = {short_hash(key): key for key in self._values}

    @property
    def packed(self) -> bytes:
        """The packed hashes for the roster record."""
        entries = sorted((hashed, short_hash(self._values[key])) for hashed, key in self._keys.items())
        return b"".join(hashed + value for hashed, value in entries[:MAX_SETTINGS])

    def differing(self, packed: bytes) -> list[bytes]:
        """Return the hashes of the keys whose values differ between the two peers or that only one of them has.

        `packed`: the other peer's settings. If the recipes differ, return only the hash of `recipe`, because it
        determines the other settings. An axis comes before its options, and keys that only the other peer has come
        last. An option that repeats an earlier one is left out: inner.optimizer.lr repeats inner.lr if each of the two
        peers has the same value for both.
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

    def answer(self, hashed: bytes) -> dict[str, str]:
        """Return key and value of the setting whose key has this hash, or an empty map if there is no such setting."""
        key = self._keys.get(hashed)
        return {} if key is None else {"key": key[:MAX_TEXT], "value": self._values[key][:MAX_TEXT]}


def short_hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:HASH_BYTES]


def entries_of(packed: bytes) -> dict[bytes, bytes]:
    """Unpack settings. Return a map from the hash of each key to the hash of its value."""
    starts = range(0, len(packed), ENTRY_BYTES)
    return {packed[i : i + HASH_BYTES]: packed[i + HASH_BYTES : i + ENTRY_BYTES] for i in starts}


def in_order(key: str) -> tuple[bool, int, str]:
    """Return the sort key of a setting: the recipe first, an axis before its options, then by name."""
    return key != "recipe", key.count("."), key


def well_formed(packed: Any) -> bool:
    """Return whether `packed`, from another peer's record, has the form of packed settings."""
    return isinstance(packed, bytes) and len(packed) % ENTRY_BYTES == 0 and len(packed) <= MAX_SETTINGS * ENTRY_BYTES


def checked_setting(value: Any, hashed: bytes) -> dict[str, str]:
    """Check a peer's answer to a request for a setting, and return it. `hashed`: hash of the requested key.

    Raises ValueError if the answer is malformed or about another setting.
    """
    if not isinstance(value, dict) or (value and set(value) != {"key", "value"}):
        raise ValueError("a setting must be sent as its key and its value")
    if not all(isinstance(text, str) and len(text) <= MAX_TEXT and text.isprintable() for text in value.values()):
        raise ValueError("a setting must be sent as short texts without line breaks")
    if value and short_hash(value["key"]) != hashed:
        raise ValueError("the answer is about a setting that was not requested")
    return value


def difference(ours: Mapping[str, str], theirs: Mapping[str, str] | None, peer: str) -> tuple[str, str]:
    """Return a description of a differing setting, and the option that the user must set on this machine.

    `theirs`: the other peer's answer, or None if it did not answer. The option is empty if users do not set this key
    themselves, or if the other peer's value is unknown.
    """
    key = (ours or theirs or {}).get("key", "a setting")
    own_value = ours["value"] if ours else "not set"
    other_value = "another value" if theirs is None else theirs["value"] if theirs else "not set"
    typed = f"{key}={other_value}" if theirs and not key.endswith(NOT_TYPED) else ""
    return f"{key} is {own_value} here and {other_value} at {peer}", typed
