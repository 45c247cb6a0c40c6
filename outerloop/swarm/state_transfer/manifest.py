"""The manifest of a snapshot of the run's state: the commit of the snapshot, and the sha256 of every 8 MiB chunk.

Peers that hold equal states have equal manifests, so the sha256 of the manifest's bytes identifies the state, and all
of these peers are sources of the state. Each donor signs (session, commit, sha256 of the manifest, size of the manifest
in bytes), which proves that the donor offered this state.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgpack

from outerloop.swarm.validation import (
    MAX_AMOUNT,
    MAX_NUMBER,
    MalformedMessage,
    checked_int,
    digest,
    fields,
    quote,
    unpacked,
)

CHUNK_BYTES = 8 << 20  # 4 MiB chunks need twice as many streams and take a fifth longer on loopback
CONTEXT = "manifest"
"""The context of a donor's signature."""
FIELDS = ("number", "head", "size_bytes", "chunks")


@dataclass(frozen=True)
class Manifest:
    """A state's manifest. `number`, `head`: number and digest of the last commit landed before the state was copied.

    `chunks`: sha256 of each chunk.
    """

    number: int
    head: bytes
    size_bytes: int
    chunks: tuple[bytes, ...]

    @staticmethod
    def of(content: bytes, *, number: int, head: bytes) -> Manifest:
        chunks = (hashlib.sha256(chunk).digest() for chunk in cut(content))
        return Manifest(number, head, len(content), tuple(chunks))

    @property
    def sha(self) -> bytes:
        """The sha256 of the manifest's bytes, which identifies the state."""
        return hashlib.sha256(self.to_bytes()).digest()

    def places(self) -> dict[bytes, list[int]]:
        """Return a mapping from sha256 to indices of the chunks with that hash.

        Keys are in order of first occurrence.
        """
        places: dict[bytes, list[int]] = {}
        for chunk, sha in enumerate(self.chunks):
            places.setdefault(sha, []).append(chunk)
        return places

    def to_bytes(self) -> bytes:
        return msgpack.packb([self.number, self.head, self.size_bytes, b"".join(self.chunks)])

    @staticmethod
    def from_bytes(content: bytes) -> Manifest:
        """Parse a manifest. Raises MalformedMessage if it is invalid."""
        value = unpacked(content, "the manifest")
        if not isinstance(value, list) or len(value) != len(FIELDS):
            raise MalformedMessage(f"a manifest must be [{', '.join(FIELDS)}]; got {quote(value)}")
        found = fields(dict(zip(FIELDS, value, strict=True)), "a manifest", FIELDS)
        size_bytes = checked_int(found["size_bytes"], "a state's size in bytes", maximum=MAX_AMOUNT)
        names = found["chunks"]
        if type(names) is not bytes or len(names) != 32 * -(-size_bytes // CHUNK_BYTES):
            raise MalformedMessage(
                f"a manifest of a state of {size_bytes} bytes must have one sha256 per chunk of {CHUNK_BYTES} bytes"
            )
        chunks = tuple(names[start : start + 32] for start in range(0, len(names), 32))
        if size_bytes % CHUNK_BYTES and chunks[-1] in chunks[:-1]:
            raise MalformedMessage("a manifest's last chunk has the sha256 of another chunk, although it is shorter")
        number = checked_int(found["number"], "a manifest's commit", maximum=MAX_NUMBER)
        return Manifest(number, digest(found["head"], "a manifest's head"), size_bytes, chunks)


def cut(content: bytes | memoryview) -> list[memoryview]:
    """Split `content` into views of CHUNK_BYTES each; the last one may be shorter."""
    view = memoryview(content)
    return [view[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES)]


def max_bytes(size_bytes: int) -> int:
    """Return the maximum size in bytes of the manifest of a state of at most `size_bytes` bytes."""
    return 128 + 32 * -(-size_bytes // CHUNK_BYTES)
