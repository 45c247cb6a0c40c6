"""Accepts signed without keys: the hash of who accepts what, so that the model tests stay fast."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from outerloop.swarm.ballots import Decided
from outerloop.swarm.commits import Commit


class ToyNotary:
    """Signs as one peer, and sees when another one's name or something else than was signed is shown."""

    def __init__(self, peer: str) -> None:
        self._peer = peer

    def sign(self, number: int, view: int, digest: bytes) -> bytes:
        return toy_signature(self._peer, number, view, digest)

    def right(self, peer: str, number: int, view: int, digest: bytes, signature: bytes) -> bool:
        return signature == toy_signature(peer, number, view, digest)


def toy_signature(peer: str, number: int, view: int, digest: bytes) -> bytes:
    """64 bytes."""
    return hashlib.sha512(f"{peer} {number} {view} ".encode() + digest).digest()


def decided_by(peers: Iterable[str], commit: Commit, view: int = 0) -> Decided:
    """A commit with the accepts of these peers."""
    signed = ((peer, toy_signature(peer, commit.number, view, commit.digest)) for peer in sorted(peers))
    return Decided(commit, view, tuple(signed))
