"""Statements (statements.py) that can be shown to others: signed by the key that the signer's peer id is made of.

    signature over (context, sitting, name of the signer, what is said ...)

The name belongs to it, so that one signature counts for one seat. The view belongs to an accept: accepts of one commit
in two views do not add up to a majority.
"""

from __future__ import annotations

from typing import cast

from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.consensus.statements import Statement
from outerloop.swarm.validation import id_of


class KeySigner:
    """The agreement's notary. `sitting`: the agreement's run; `own`: the name that this peer signs with."""

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
