"""The statements that peers of the agreement sign, so that any third party can verify them.

    accept     after this head, in this round: the signer accepts the commit of this digest in this view
    promise    after this head, in this round: the signer accepts nothing of an earlier view any more, and what it
               accepted last is the commit of this digest, in that view (-1 and no digest: nothing)
    view       after this head, in this round: the signer wants to be in this view
    ask        after this head, in this round: the signer holds the state and asks to be counted

Each is signed with the session and the signer's name in front (signatures.py), so it is valid for one run, round and
name. Each names the head, because a peer that switches to another chain (forks.py) votes again in rounds it has voted
in. After one head no honest peer accepts two commits in one view, or omits an earlier accept from a later promise: two
such statements prove to every peer that the signer lied.
"""

from __future__ import annotations

from typing import Protocol

Statement = tuple[str | int | bytes, ...]
"""The kind and context first, then the content."""


class AcceptSigner(Protocol):
    """The signing interface of the agreement, which has no access to keys. `session`: the run of this agreement."""

    @property
    def session(self) -> str: ...

    def sign(self, statement: Statement) -> bytes:
        """Return this peer's signature of 64 bytes, the same for the same statement."""
        ...

    def verify(self, peer: str, statement: Statement, signature: bytes) -> bool:
        """Return whether the peer of this name has signed the statement."""
        ...


def accept(number: int, head: bytes, view: int, digest: bytes) -> Statement:
    return ("accept", number, head, view, digest)


def promise(number: int, head: bytes, view: int, accepted: tuple[int, bytes] | None) -> Statement:
    return ("promise", number, head, view, *(accepted or (-1, b"")))


def wish(number: int, head: bytes, view: int) -> Statement:
    return ("view", number, head, view)


def ask(number: int, head: bytes) -> Statement:
    return ("ask", number, head)
