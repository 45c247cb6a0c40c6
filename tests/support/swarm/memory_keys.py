"""Signatures of peers in memory, whose ids are short names: each has the key that its name gives."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from outerloop.swarm.access.access_control import AccessControl, AllowList, RejectionLog
from outerloop.swarm.access.signatures import Signatures


@cache
def key_of(peer: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(peer.encode()).digest())


@cache
def public_of(peer: str) -> Ed25519PublicKey:
    return key_of(peer).public_key()


class Named(AllowList):
    """An allow-list of short names; if it is empty, the run is open."""

    def __init__(self, peers: Iterable[str] = ()) -> None:
        super().__init__()
        self._peers = frozenset(peers)


def trust_of(peer: str, *, allow: Iterable[str] = ()) -> AccessControl:
    return AccessControl(Signatures(key_of(peer), public_of=public_of), Named(allow), RejectionLog())
