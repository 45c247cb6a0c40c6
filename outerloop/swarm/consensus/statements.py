"""Statements that peers sign in the consensus, so that any peer can verify them.

    accept     the signer accepts the commit with this digest in this view
    promise    the signer no longer accepts a proposal of an earlier view; it reports the view and the digest of the
               commit that it accepted last (-1 and an empty digest if it has accepted none)
    prepare    the signer votes for the commit with this digest in this view of HotStuff-2 (hotstuff/__init__.py); it
               names the view of the certificate that justifies the proposal (-1 if there is none)
    commit     the signer is locked on the commit with this digest, which more than two thirds have prepared in this
               view
    view       the signer wants to be in this view
    ask        the signer holds the state and asks to be counted
    resign     the signer does not vote in this round, nor in the next one (resignation.py)

Each statement names a round and a head. Its signature also covers the session and the signer's name (signatures.py),
so it is valid for one session, round and name. The head is named because a peer that switches to another chain
(forks.py) votes again in rounds in which it has already voted. After a given head, an honest peer never accepts two
commits in one view and never omits an earlier accept from a later promise. It never signs two `prepare` statements for
different proposals in one view, and never two `commit` statements for different commits in one view. After a `commit`
statement of view v, it never votes for a proposal that is justified by a certificate of a view before v, or by none. It
never votes after it has resigned. Two statements that show otherwise prove that the signer lied. In one run, peers sign
either accepts and promises or prepares and commits.
"""

from __future__ import annotations

from typing import Protocol

Statement = tuple[str | int | bytes, ...]
"""The kind of the statement, which is also the context of its signature, followed by its fields."""


class StatementSigner(Protocol):
    """The interface by which the consensus code, which never handles keys, signs and verifies statements.

    `session`: id of the session.
    """

    @property
    def session(self) -> str: ...

    def sign(self, statement: Statement) -> bytes:
        """Return this peer's 64-byte signature of a statement. The same statement always gets the same signature."""
        ...

    def verify(self, peer: str, statement: Statement, signature: bytes) -> bool:
        """Return whether `signature` is a valid signature of the statement by the peer named `peer`."""
        ...


def accept(number: int, head: bytes, view: int, digest: bytes) -> Statement:
    return ("accept", number, head, view, digest)


def promise(number: int, head: bytes, view: int, accepted: tuple[int, bytes] | None) -> Statement:
    return ("promise", number, head, view, *(accepted or (-1, b"")))


def prepare(number: int, head: bytes, view: int, digest: bytes, justified: int) -> Statement:
    return ("prepare", number, head, view, digest, justified)


def commit(number: int, head: bytes, view: int, digest: bytes) -> Statement:
    return ("commit", number, head, view, digest)


def wish(number: int, head: bytes, view: int) -> Statement:
    return ("view", number, head, view)


def ask(number: int, head: bytes) -> Statement:
    return ("ask", number, head)


def resign(number: int, head: bytes) -> Statement:
    return ("resign", number, head)
