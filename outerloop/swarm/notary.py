"""Accepts that can be shown to others: a commit is proven by those of a majority, whoever passes it on.

    signature over ("accept", sitting, round, view, digest of the commit), by the key of the acceptor's peer id

The view belongs to it: accepts of one commit in two views do not add up to a majority.
"""

from __future__ import annotations

from outerloop.swarm.roster import id_of
from outerloop.swarm.signatures import Signatures

CONTEXT = "accept"


class Keys:
    """The agreement's notary (scrutiny.py), with the keys that peer ids are made of. `sitting`: the agreement's run."""

    def __init__(self, signatures: Signatures, *, sitting: str) -> None:
        self._signatures = signatures
        self._sitting = sitting

    def sign(self, number: int, view: int, digest: bytes) -> bytes:
        return self._signatures.sign(CONTEXT, self._sitting, number, view, digest)

    def right(self, peer: str, number: int, view: int, digest: bytes, signature: bytes) -> bool:
        return self._signatures.right(signature, CONTEXT, self._sitting, number, view, digest, by=id_of(peer))
