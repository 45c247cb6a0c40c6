"""Define how a peer commits to the inner steps of a round before it can know which of them will be audited.

    leaf     hashes of a peer's state before the first inner step of a round, after every J-th one, and after the last
             one. Leaf i is the state before window i, so a round of n + 1 leaves has n windows
    root     SHA-256(DOMAIN | number | leaf 0 | leaf 1 | ...), number: 8 bytes, big-endian
    leaf     SHA-256 of the weights, of the optimizer and of the rest of the state, 96 bytes

The header, with the root, precedes the payload of the round. The payload's signature covers it (signed_payload.py).

    header   MAGIC | number of leaves, u32, big-endian | root | machine class

A peer without leaves for a round, because it was restarted or is behind, sends 0 leaves and a root of zeros. A list of
leaves is short enough to be sent as a whole, so a hash of the list commits to it, and no tree of hashes is needed.
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
    """Split a payload into its header and the wire message. The header is None, and nothing is removed, if invalid."""
    if len(payload) < HEADER.size:
        return None, payload
    magic, leaves, root, machine = HEADER.unpack_from(payload)
    if magic != MAGIC or not ((leaves == 0 and root == NO_ROOT) or 2 <= leaves <= MAX_LEAVES):
        return None, payload
    return Header(leaves, root, machine), memoryview(payload)[HEADER.size :]


def root_of(number: int, leaves: Sequence[Leaf]) -> bytes:
    """Return the root of the leaves of round `number`, or NO_ROOT without leaves."""
    content = b"".join(leaf.to_bytes() for leaf in leaves)
    return hashlib.sha256(DOMAIN + number.to_bytes(8, "big") + content).digest() if leaves else NO_ROOT


def machine_class(description: str) -> bytes:
    """Return the hash of a description of everything that determines the last bits of an inner step on a machine."""
    return hashlib.sha256(MACHINE_DOMAIN + description.encode()).digest()


def leaves_from(content: bytes) -> list[Leaf]:
    """Parse the leaves that a peer sent. Raises MalformedMessage if their length is invalid."""
    if len(content) % LEAF_BYTES or len(content) > MAX_LEAVES * LEAF_BYTES:
        raise MalformedMessage(
            f"a list of leaves must have at most {MAX_LEAVES} leaves of {LEAF_BYTES} bytes; got {len(content)} bytes"
        )
    hashes = [content[start : start + HASH_BYTES] for start in range(0, len(content), HASH_BYTES)]
    return [Leaf(*hashes[start : start + 3]) for start in range(0, len(hashes), 3)]
