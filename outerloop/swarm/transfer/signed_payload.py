"""A payload preceded by its owner's signature, so that a relaying peer cannot attribute it to another peer or round.

    content      signature (64 bytes) | payload
    signature    over (purpose, session, round, owner's name, sha256 of the payload) and the state of the run that the
                 owner reports, if it reports one

A commit contains the sha256 of the whole content. A peer reports that it holds a payload only after checking the
signature, and accepts a commit only if it holds all payloads of the commit. So a commit accepted by a majority consists
of payloads that their owners offered for exactly this round, regardless of what the leader claims and which peer sent
the bytes. Likewise, a state that a commit attributes to a participant (state_roots.py) is the state that the
participant reported. The payload itself repeats its round, fragment, peer and number of samples (wire.py).
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
INLINE_BYTES = 4 << 20
"""Larger content is hashed or copied in a thread (at about 1.7 GB/s), so that it does not block the network loop."""


def sign_payload(
    payload: bytes,
    signatures: Signatures,
    *,
    session: str,
    number: int,
    peer: str,
    state: State | None = None,
) -> bytes:
    """Sign a payload. Return the signature followed by the payload.

    `number`: the round. `peer`: the owner's name. `state`: the state of the run that the owner reports, if any.
    """
    sha256 = hashlib.sha256(payload).digest()
    return signatures.sign(PURPOSE, session, number, peer, sha256, *(state or ())) + payload


async def payload_error(
    content: bytes,
    signatures: Signatures,
    *,
    session: str,
    number: int,
    peer: str,
    state: State | None = None,
) -> str:
    """Return why `content` is not a payload that `peer` signed for this round and state, or "" if it is valid."""
    sha256 = await offload(len(content), lambda: _digest(content))
    statement = PURPOSE, session, number, peer, sha256, *(state or ())
    if signatures.verify(content[:SIGNATURE_BYTES], *statement, by=id_of(peer)):
        return ""
    return "its payload is not signed by its owner for this round"


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(memoryview(content)[SIGNATURE_BYTES:]).digest()


async def strip_signatures(contents: Sequence[tuple[str, Buffer]]) -> list[tuple[str, bytes | memoryview]]:
    """Remove the signatures from (peer, content) pairs, and return (peer, payload) pairs.

    A payload is a view if its content is bytes, and a copy otherwise (if it is mapped from a file).
    """
    size = sum(len(content) for _, content in contents if not isinstance(content, bytes))
    return await offload(size, lambda: [(peer, _payload(content)) for peer, content in contents])


def _payload(content: Buffer) -> bytes | memoryview:
    view = memoryview(content)[SIGNATURE_BYTES:]
    return view if isinstance(content, bytes) else bytes(view)


async def offload(size: int, work: Callable[[], T]) -> T:
    """Run `work`, which processes `size` bytes, and return its result. Above INLINE_BYTES, it runs in a thread."""
    return await asyncio.to_thread(work) if size > INLINE_BYTES else work()
