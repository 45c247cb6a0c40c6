"""Signatures of statements (statements.py), by the key of the signer's peer id.

    signature over (context, session, name of the signer, fields of the statement ...)

The name is signed, so that one signature counts for one member of the roster. An accept also contains its view, so that
accepts of one commit in two views do not add up to a majority.
"""

from __future__ import annotations

from typing import cast

from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.consensus.statements import Statement
from outerloop.swarm.validation import id_of


class KeySigner:
    """Signs and verifies statements for the agreement. `session`: session id; `own`: name that this peer signs with."""

    def __init__(self, signatures: Signatures, *, session: str, own: str) -> None:
        self._signatures = signatures
        self._session = session
        self._own = own

    @property
    def session(self) -> str:
        return self._session

    def sign(self, statement: Statement) -> bytes:
        context, *fields = statement
        return self._signatures.sign(cast(str, context), self._session, self._own, *fields)

    def verify(self, peer: str, statement: Statement, signature: bytes) -> bool:
        context, *fields = statement
        return self._signatures.verify(signature, cast(str, context), self._session, peer, *fields, by=id_of(peer))
