"""Define how a peer commits to the inner steps of a round before it can know which of them will be audited.

    leaf     three SHA-256 hashes of a peer's state: of the weights, of the optimizer and of the rest; 96 bytes. A leaf
             is taken before the first inner step of a round, after every J-th one, and after the last one. Window i is
             the inner steps between leaves i and i + 1, so a round of n + 1 leaves has n windows
    root     SHA-256(DOMAIN | number of the round, 8 bytes, big-endian | leaf 0 | leaf 1 | ...)    (|: concatenation)

A header, which contains the root, precedes the wire message in a payload. The payload's signature covers the header
(signed_payload.py).

    header   MAGIC | number of leaves, u32, big-endian | root | machine class

If a peer has no leaves for a round, because it was restarted or is behind, the header states 0 leaves and a root of
zeros. The leaves of a round are so few that they are always sent together. So one hash of them all is a sufficient
commitment, and no tree of hashes is needed.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from outerloop.swarm.validation import MalformedMessage

MAGIC = b"OAUD"
DOMAIN = b"outerloop/1/leaves\n"
MACHINE_DOMAIN = b"outerloop/1/machine class\n"
HEADER = struct.Struct(">4sI32s32s")
HASH_BYTES = 32
LEAF_BYTES = 3 * HASH_BYTES
MAX_LEAVES = 4096
"""Maximum number of leaves of a round."""
NO_ROOT = bytes(HASH_BYTES)
MATCH, REFUSED = -1, -2
"""Results of an audit without a differing leaf: all replayed leaves are equal, or the peer did not send its state."""


@dataclass(frozen=True)
class Leaf:
    """Hashes (SHA-256) of one state of a peer between two inner steps.

    weights     the trainable parameters
    optimizer   the inner optimizer's state, and the number of updates that it has made
    rest        the model's buffers and the state of the random number generators
    """

    weights: bytes
    optimizer: bytes
    rest: bytes

    @property
    def hashes(self) -> tuple[bytes, bytes, bytes]:
        return astuple(self)

    def to_bytes(self) -> bytes:
        return b"".join(self.hashes)


@dataclass(frozen=True)
class Header:
    """The header of a payload: a commitment to the inner steps behind it. `machine`: hash of the machine class."""

    leaves: int
    root: bytes
    machine: bytes

    def to_bytes(self) -> bytes:
        return HEADER.pack(MAGIC, self.leaves, self.root, self.machine)


def split(payload: bytes | memoryview) -> tuple[Header | None, bytes | memoryview]:
    """Split a payload into its header and the wire message. If the header is not valid, return (None, payload)."""
    if len(payload) < HEADER.size:
        return None, payload
    magic, leaves, root, machine = HEADER.unpack_from(payload)
    if magic != MAGIC or not ((leaves == 0 and root == NO_ROOT) or 2 <= leaves <= MAX_LEAVES):
        return None, payload
    return Header(leaves, root, machine), memoryview(payload)[HEADER.size :]


def root_of(number: int, leaves: Sequence[Leaf]) -> bytes:
    """Return the root of the leaves of round `number`, or NO_ROOT if there are no leaves."""
    content = b"".join(leaf.to_bytes() for leaf in leaves)
    return hashlib.sha256(DOMAIN + number.to_bytes(8, "big") + content).digest() if leaves else NO_ROOT


def machine_class(description: str) -> bytes:
    """Return the hash that identifies a machine class.

    `description`: all properties of a machine on which the exact bits of an inner step's result depend.
    """
    return hashlib.sha256(MACHINE_DOMAIN + description.encode()).digest()


def leaves_from(content: bytes) -> list[Leaf]:
    """Parse the leaves that a peer sent. Raises MalformedMessage if their length is invalid."""
    if len(content) % LEAF_BYTES or len(content) > MAX_LEAVES * LEAF_BYTES:
        raise MalformedMessage(
            f"a list of leaves must have at most {MAX_LEAVES} leaves of {LEAF_BYTES} bytes; got {len(content)} bytes"
        )
    hashes = [content[start : start + HASH_BYTES] for start in range(0, len(content), HASH_BYTES)]
    return [Leaf(*hashes[start : start + 3]) for start in range(0, len(hashes), 3)]
