"""A peer's map -> checked values. Whatever is not exactly what it should be is a MalformedMessage that names the
field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import msgpack

MAX_PEERS = 1024
MAX_NUMBER = 1 << 40  # rounds
MAX_VIEW = 1 << 31
MAX_AMOUNT = 1 << 62  # bytes of a payload
SIGNATURE_BYTES = 64  # Ed25519
PEER_ID = re.compile(r"[0-9A-Za-z_.-]{1,128}")
QUOTED = 40  # characters of a bad value that a message shows


class MalformedMessage(ValueError):
    """These bytes are not a message of the agreement. The text names the field."""


def unpacked(content: bytes, what: str) -> Any:
    """Return what these msgpack bytes say. Raises MalformedMessage when they are damaged."""
    try:
        return msgpack.unpackb(content)
    except ValueError as error:  # every way in which msgpack refuses bytes is one
        raise MalformedMessage(f"{what} is unreadable: {error}") from error


def fields(value: Any, what: str, names: Iterable[str]) -> dict[str, Any]:
    """A map with exactly these keys."""
    names = set(names)
    if not isinstance(value, dict) or set(value) != names:
        raise MalformedMessage(f"{what} is a map of {', '.join(sorted(names))}; came {quote(value)}")
    return value


def whole(value: Any, what: str, *, least: int = 0, most: int) -> int:
    if type(value) is not int or not least <= value <= most:  # True is no number
        raise MalformedMessage(f"{what} is a whole number from {least} to {most}; came {quote(value)}")
    return value


def id_of(name: str) -> str:
    """Return the peer id in a name, NNN-<peer id>, which streams are opened to and prove; a bare id is its own."""
    return name.partition("-")[2] or name


def digest(value: Any, what: str) -> bytes:
    if type(value) is not bytes or len(value) != 32:
        raise MalformedMessage(f"{what} is a sha256 of 32 bytes; came {quote(value)}")
    return value


def signature(value: Any, what: str) -> bytes:
    if type(value) is not bytes or len(value) != SIGNATURE_BYTES:
        raise MalformedMessage(f"{what} has {SIGNATURE_BYTES} bytes; came {quote(value)}")
    return value


def peer_id(value: Any, what: str) -> str:
    if type(value) is not str or not PEER_ID.fullmatch(value):
        raise MalformedMessage(f"{what} is a peer id; came {quote(value)}")
    return value


def items(value: Any, what: str, *, least: int = 0) -> list[Any]:
    """A list of one entry a peer at most."""
    if type(value) is not list or not least <= len(value) <= MAX_PEERS:
        raise MalformedMessage(f"{what} is a list of {least} to {MAX_PEERS}; came {quote(value)}")
    return value


def peer_ids(value: Any, what: str, *, least: int = 0) -> tuple[str, ...]:
    """Peer ids, each once, in ascending order."""
    return ascending([peer_id(one, what) for one in items(value, what, least=least)], what)


def ascending(peers: list[str], what: str) -> tuple[str, ...]:
    if any(left >= right for left, right in pairwise(peers)):
        raise MalformedMessage(f"{what} come each once and in ascending order; came {quote(peers)}")
    return tuple(peers)


def quote(value: Any) -> str:
    """A stranger's value, in short."""
    if isinstance(value, dict | list | tuple | bytes | str) and len(value) > QUOTED:
        return f"{type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= QUOTED else text[:QUOTED] + "..."
