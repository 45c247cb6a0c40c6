"""What a snapshot of the run's state is made of: data only, a name for every 8 MiB of it.

    sha256 of the manifest's bytes -> the sha256 of every chunk, and the commit that the state is as of

Peers that hold equal states have equal manifests, so one name stands for all of them as holders. Each donor signs the
name over (sitting, commit, sha256, bytes): it stands for the state, and can be shown to.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgpack

from outerloop.swarm.validation import MAX_AMOUNT, MAX_NUMBER, MalformedMessage, digest, fields, quote, unpacked, whole

CHUNK_BYTES = 8 << 20  # of 4 MiB there are twice as many streams, which take a fifth longer on loopback
CONTEXT = "manifest"
"""Of a donor's signature."""
FIELDS = ("number", "head", "size_bytes", "chunks")


@dataclass(frozen=True)
class Manifest:
    """`number` and `head`: of the commit after whose landing the state was copied. `chunks`: sha256 of each."""

    number: int
    head: bytes
    size_bytes: int
    chunks: tuple[bytes, ...]

    @staticmethod
    def of(content: bytes, *, number: int, head: bytes) -> Manifest:
        chunks = (hashlib.sha256(one).digest() for one in cut(content))
        return Manifest(number, head, len(content), tuple(chunks))

    @property
    def sha(self) -> bytes:
        """The name of it: sha256 of its bytes."""
        return hashlib.sha256(self.to_bytes()).digest()

    def places(self) -> dict[bytes, list[int]]:
        """Where each different chunk belongs, in the order of their first places."""
        places: dict[bytes, list[int]] = {}
        for chunk, sha in enumerate(self.chunks):
            places.setdefault(sha, []).append(chunk)
        return places

    def to_bytes(self) -> bytes:
        return msgpack.packb([self.number, self.head, self.size_bytes, b"".join(self.chunks)])

    @staticmethod
    def from_bytes(content: bytes) -> Manifest:
        """Raises MalformedMessage."""
        value = unpacked(content, "the manifest")
        if not isinstance(value, list) or len(value) != len(FIELDS):
            raise MalformedMessage(f"a manifest is [{', '.join(FIELDS)}]; came {quote(value)}")
        found = fields(dict(zip(FIELDS, value, strict=True)), "a manifest", FIELDS)
        size_bytes = whole(found["size_bytes"], "a state's size in bytes", most=MAX_AMOUNT)
        names = found["chunks"]
        if type(names) is not bytes or len(names) != 32 * -(-size_bytes // CHUNK_BYTES):
            raise MalformedMessage(f"a manifest of {size_bytes} bytes does not name every chunk of {CHUNK_BYTES}")
        chunks = tuple(names[start : start + 32] for start in range(0, len(names), 32))
        if size_bytes % CHUNK_BYTES and chunks[-1] in chunks[:-1]:
            raise MalformedMessage("a manifest gives its last chunk, which is shorter, the name of another one")
        number, head = whole(found["number"], "a manifest's commit", most=MAX_NUMBER), digest(found["head"], "its head")
        return Manifest(number, head, size_bytes, chunks)


def cut(content: bytes | memoryview) -> list[memoryview]:
    """The chunks of a content, not copied; the last one may be shorter."""
    view = memoryview(content)
    return [view[start : start + CHUNK_BYTES] for start in range(0, len(content), CHUNK_BYTES)]


def most_bytes(size_bytes: int) -> int:
    """What the manifest of a state of at most so many bytes can take."""
    return 128 + 32 * -(-size_bytes // CHUNK_BYTES)
