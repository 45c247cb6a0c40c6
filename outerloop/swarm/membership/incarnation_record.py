"""Signed statements of a process: its incarnation, and its objections to younger processes with the same key.

    incarnation   count | nonce | signature over (run, count | nonce)
    objection     nonce | the other's nonce | signature over (run, both nonces): "I am alive, the other is younger"

Both are signed with the peer's key, because other peers relay them. An objection proves that the process that signed it
was alive after the younger process had started: it contains the younger process's nonce, which did not exist before.
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
    """One process of a peer: its start count and its nonce.

    `packed`: the signed statement, as sent to other peers. `read` does not verify the signature.
    """

    count: int
    nonce: bytes
    packed: bytes = field(repr=False, compare=False)

    @staticmethod
    def read(packed: object) -> Incarnation | None:
        """Return the incarnation in `packed`, or None if it is malformed. Does not verify the signature."""
        if type(packed) is not bytes or len(packed) != PACKED_BYTES:
            return None
        return Incarnation(int.from_bytes(packed[:COUNT_BYTES], "big"), packed[COUNT_BYTES:][:NONCE_BYTES], packed)


class IncarnationStatements:
    """Signs this peer's statements, and verifies those of all peers. They are valid for `run` only."""

    def __init__(self, signatures: Signatures, *, run: str) -> None:
        self._signatures = signatures
        self._run = run

    def incarnation(self, life: Life) -> Incarnation:
        """Return the signed incarnation of this process."""
        statement = life.count.to_bytes(COUNT_BYTES, "big") + life.nonce
        return Incarnation(life.count, life.nonce, statement + self._signatures.sign(INCARNATION, self._run, statement))

    def objection(self, own: Incarnation, younger: Incarnation) -> bytes:
        """Return the signed objection of this process to a younger process with the same key."""
        nonces = own.nonce + younger.nonce
        return nonces + self._signatures.sign(OBJECTION, self._run, nonces)

    def is_of(self, peer: str, incarnation: Incarnation) -> bool:
        """Return whether the peer with id `peer` has signed this incarnation."""
        statement, signature = incarnation.packed[:-SIGNATURE_BYTES], incarnation.packed[-SIGNATURE_BYTES:]
        return self._signatures.verify(signature, INCARNATION, self._run, statement, by=peer)

    def objects(self, peer: str, elder: Incarnation, younger: Incarnation, objection: object) -> bool:
        """Return whether `objection` is a valid objection of the elder process of `peer` to the younger one."""
        nonces = elder.nonce + younger.nonce
        if type(objection) is not bytes or not objection.startswith(nonces):
            return False
        return self._signatures.verify(objection[len(nonces) :], OBJECTION, self._run, nonces, by=peer)
