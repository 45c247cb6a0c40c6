"""What a process says of itself: which one of its peer's it is, and that it has seen another one.

    incarnation   count | nonce | signature over (run, count | nonce)
    objection     nonce | the other's nonce | signature over (run, both nonces): "I live, and this one is younger"

Both are signed by the key of the peer, since others pass them on. Only a process that lives can object to a nonce that
was drawn after its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outerloop.swarm.access.identity import NONCE_BYTES, Life
from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.validation import SIGNATURE_BYTES

INCARNATION, OBJECTION = "incarnation", "objection"
COUNT_BYTES = 8
PACKED_BYTES = COUNT_BYTES + NONCE_BYTES + SIGNATURE_BYTES


@dataclass(frozen=True)
class Incarnation:
    """One process of a peer, `packed` as it is told. What comes from others is not checked yet."""

    count: int
    nonce: bytes
    packed: bytes = field(repr=False, compare=False)

    @staticmethod
    def read(packed: object) -> Incarnation | None:
        """Return what was told; None where it is none."""
        if type(packed) is not bytes or len(packed) != PACKED_BYTES:
            return None
        return Incarnation(int.from_bytes(packed[:COUNT_BYTES], "big"), packed[COUNT_BYTES:][:NONCE_BYTES], packed)


class IncarnationStatements:
    """Makes them as this peer, and checks those of all. `run`: they are of this one alone."""

    def __init__(self, signatures: Signatures, *, run: str) -> None:
        self._signatures = signatures
        self._run = run

    def incarnation(self, life: Life) -> Incarnation:
        """Return what this process is."""
        said = life.count.to_bytes(COUNT_BYTES, "big") + life.nonce
        return Incarnation(life.count, life.nonce, said + self._signatures.sign(INCARNATION, self._run, said))

    def objection(self, own: Incarnation, younger: Incarnation) -> bytes:
        """Return what this process says against another one of its peer."""
        nonces = own.nonce + younger.nonce
        return nonces + self._signatures.sign(OBJECTION, self._run, nonces)

    def is_of(self, peer: str, one: Incarnation) -> bool:
        """Return whether this peer, by id, has signed that it is so."""
        said, signature = one.packed[:-SIGNATURE_BYTES], one.packed[-SIGNATURE_BYTES:]
        return self._signatures.right(signature, INCARNATION, self._run, said, by=peer)

    def objects(self, peer: str, elder: Incarnation, younger: Incarnation, objection: object) -> bool:
        """Return whether this is what one process of a peer says against another one."""
        nonces = elder.nonce + younger.nonce
        if type(objection) is not bytes or not objection.startswith(nonces):
            return False
        return self._signatures.right(objection[len(nonces) :], OBJECTION, self._run, nonces, by=peer)
