"""A payload with its owner's signature in front, so that whoever passes it on cannot pass it off as something else.

    signature (64 bytes) | payload          over (purpose, sitting, round, the owner's name, sha256 of the payload)
                                            and the state that the owner names, if it names one

What a commit names is the sha256 of both together. Nobody says that it holds a payload before the signature was found
right, and nobody accepts a commit without holding all of its payloads: so what a majority accepts is made of what its
owners offered for just this round, whatever a leader claims and whoever gave the bytes; and a state that a commit says
a participant names (state_roots.py) is the one that it does name. The payload itself repeats its round, fragment, peer
and samples (wire.py).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.consensus.commit import State
from outerloop.swarm.storage import Buffer
from outerloop.swarm.validation import SIGNATURE_BYTES, id_of

T = TypeVar("T")
PURPOSE = "payload"
SEAL_BYTES = SIGNATURE_BYTES
INLINE_BYTES = 4 << 20
"""More is hashed or copied beside the network thread's loop, at 1.7 GB/s or so."""


def sealed(
    payload: bytes,
    signatures: Signatures,
    *,
    sitting: str,
    number: int,
    peer: str,
    state: State | None = None,
) -> bytes:
    """What travels. `peer`: the name of this peer, who offers it; `state`: what it names beside."""
    seen = hashlib.sha256(payload).digest()
    return signatures.sign(PURPOSE, sitting, number, peer, seen, *(state or ())) + payload


async def doubt(
    content: bytes,
    signatures: Signatures,
    *,
    sitting: str,
    number: int,
    peer: str,
    state: State | None = None,
) -> str:
    """Why this is not what a peer offered for this round, naming this state; empty when it is."""
    seen = await beside(len(content), lambda: _seen(content))
    said = PURPOSE, sitting, number, peer, seen, *(state or ())
    if signatures.right(content[:SEAL_BYTES], *said, by=id_of(peer)):
        return ""
    return f"what came as its payload of round {number} is not signed by it for this round"


def _seen(content: bytes) -> bytes:
    return hashlib.sha256(memoryview(content)[SEAL_BYTES:]).digest()


async def unsealed(contents: Sequence[tuple[str, Buffer]]) -> list[tuple[str, bytes | memoryview]]:
    """Peers and their payloads: a view of bytes, which nobody can change; a copy of what lies in a file."""
    size = sum(len(content) for _, content in contents if not isinstance(content, bytes))
    return await beside(size, lambda: [(peer, _payload(content)) for peer, content in contents])


def _payload(content: Buffer) -> bytes | memoryview:
    view = memoryview(content)[SEAL_BYTES:]
    return view if isinstance(content, bytes) else bytes(view)


async def beside(size: int, work: Callable[[], T]) -> T:
    """What `work` on so many bytes comes to; the loop goes on meanwhile when they are many."""
    return await asyncio.to_thread(work) if size > INLINE_BYTES else work()
