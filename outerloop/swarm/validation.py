"""Validate untrusted values from peers. An invalid value raises MalformedMessage with the name of the field."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from reprlib import Repr
from typing import Any

import msgpack

from outerloop.types import id_of as id_of

MAX_PEERS = 1024
MAX_NUMBER = 1 << 40  # largest round number
MAX_VIEW = 1 << 31
MAX_AMOUNT = 1 << 62  # maximum number of bytes, e.g. of a payload
MAX_MANIFEST_BYTES = 16 << 10  # maximum size of the JSON of a run manifest
SIGNATURE_BYTES = 64  # Ed25519
PEER_ID = re.compile(r"[0-9A-Za-z_.-]{1,128}")
QUOTED = 40  # maximum number of characters of an invalid value that an error message quotes
NESTED_REPR = Repr()
"""Quotes at most 3 levels of nested lists and maps. `repr` would fail at about 1000 levels; msgpack allows 1024."""
NESTED_REPR.maxlevel = 3
NESTED_REPR.maxlist = NESTED_REPR.maxtuple = NESTED_REPR.maxdict = QUOTED
NESTED_REPR.maxstring = NESTED_REPR.maxlong = NESTED_REPR.maxother = 1000


class MalformedMessage(ValueError):
    """A peer sent a value that does not have the required form. The message names the invalid field."""


def unpacked(content: bytes, what: str) -> Any:
    """Decode msgpack bytes and return the value. Raises MalformedMessage if they are invalid.

    `what`: name of the content for the error message.
    """
    try:
        return msgpack.unpackb(content)
    except ValueError as error:  # base class of all errors that unpackb raises for malformed bytes
        raise MalformedMessage(f"{what} is unreadable: {error}") from error


def fields(value: Any, what: str, names: Iterable[str]) -> dict[str, Any]:
    """Check that `value` is a map with exactly the keys `names`, and return it."""
    names = set(names)
    if not isinstance(value, dict) or set(value) != names:
        raise MalformedMessage(f"{what} must be a map with the keys {', '.join(sorted(names))}; got {quote(value)}")
    return value


def checked_int(value: Any, what: str, *, minimum: int = 0, maximum: int) -> int:
    """Check that `value` is an int from `minimum` to `maximum`, and return it."""
    if type(value) is not int or not minimum <= value <= maximum:  # excludes bool
        raise MalformedMessage(f"{what} must be a whole number from {minimum} to {maximum}; got {quote(value)}")
    return value


def view_number(value: Any, what: str = "a view", *, minimum: int = 0) -> int:
    return checked_int(value, what, minimum=minimum, maximum=MAX_VIEW)


def digest(value: Any, what: str) -> bytes:
    if type(value) is not bytes or len(value) != 32:
        raise MalformedMessage(f"{what} must be a sha256 of 32 bytes; got {quote(value)}")
    return value


def signature(value: Any, what: str) -> bytes:
    if type(value) is not bytes or len(value) != SIGNATURE_BYTES:
        raise MalformedMessage(f"{what} must have {SIGNATURE_BYTES} bytes; got {quote(value)}")
    return value


def peer_id(value: Any, what: str) -> str:
    if type(value) is not str or not PEER_ID.fullmatch(value):
        raise MalformedMessage(f"{what} must be a peer id; got {quote(value)}")
    return value


def items(value: Any, what: str, *, minimum: int = 0) -> list[Any]:
    """Check that `value` is a list of `minimum` to MAX_PEERS entries, and return it."""
    if type(value) is not list or not minimum <= len(value) <= MAX_PEERS:
        raise MalformedMessage(f"{what} must be a list of {minimum} to {MAX_PEERS} entries; got {quote(value)}")
    return value


def row(value: Any, length: int, what: str) -> list[Any]:
    """Check that `value` is a list of `length` entries, and return it.

    `what`: a clause that states the required form; the error message starts with it.
    """
    if type(value) is not list or len(value) != length:
        raise MalformedMessage(f"{what}; got {quote(value)}")
    return value


def peer_ids(value: Any, what: str, *, minimum: int = 0) -> tuple[str, ...]:
    """Check that `value` is a list of unique peer ids in ascending order, and return them."""
    return ascending([peer_id(peer, what) for peer in items(value, what, minimum=minimum)], what)


def ascending(peers: list[str], what: str) -> tuple[str, ...]:
    if any(left >= right for left, right in pairwise(peers)):
        raise MalformedMessage(f"{what} must be unique and in ascending order; got {quote(peers)}")
    return tuple(peers)


def quote(value: Any) -> str:
    """Return a short representation of an untrusted value for error messages, however deeply it is nested."""
    if isinstance(value, dict | list | tuple | bytes | str) and len(value) > QUOTED:
        return f"{type(value).__name__} of {len(value)}"
    text = NESTED_REPR.repr(value)
    return text if len(text) <= QUOTED else text[:QUOTED] + "..."
