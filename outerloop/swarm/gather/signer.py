"""Signatures of statements (statements.py), by the key of the signer's peer id.

    signature over (context, sitting, name of the signer, fields of the statement ...)

The name is signed, so that one signature counts for one member of the roster. An accept also contains its view, so that
accepts of one commit in two views do not add up to a majority.
"""

from __future__ import annotations

from typing import cast

from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.consensus.statements import Statement
from outerloop.swarm.validation import id_of


class KeySigner:
    """Signs and verifies statements for the agreement. `sitting`: session id; `own`: name that this peer signs with."""

    def __init__(self, signatures: Signatures, *, sitting: str, own: str) -> None:
        self._signatures = signatures
        self._sitting = sitting
        self._own = own

    @property
    def sitting(self) -> str:
        return self._sitting

    def sign(self, statement: Statement) -> bytes:
        context, *said = statement
        return self._signatures.sign(cast(str, context), self._sitting, self._own, *said)

    def right(self, peer: str, statement: Statement, signature: bytes) -> bool:
        context, *said = statement
        return self._signatures.right(signature, cast(str, context), self._sitting, peer, *said, by=id_of(peer))
