"""What peers of the agreement sign, so that whoever is shown it can tell that they have said it.

    accept     after this head, in this round: it accepts the commit of this digest in this view
    promise    after this head, in this round: it accepts nothing of a view before this one any more, and what it
               accepted last is the commit of this digest, in that view (-1 and no digest: nothing)
    view       after this head, in this round: it wants to be in this view
    ask        after this head, in this round: it holds the state and asks to be counted

Each is signed with the sitting and the signer's name in front (signer.py), and so holds for one run, round and name.
The head belongs to each, since who leaves a chain for another one (forks.py) votes anew in rounds that it has voted in.
After one head no honest peer accepts two commits in one view, or promises after an accept what leaves that accept out:
two such statements prove a lie to everybody.
"""

from __future__ import annotations

from typing import Protocol

Statement = tuple[str | int | bytes, ...]
"""The context first, then what is said."""


class AcceptSigner(Protocol):
    """What the agreement, which knows no keys, needs of them. `sitting`: the run of this agreement."""

    @property
    def sitting(self) -> str: ...

    def sign(self, statement: Statement) -> bytes:
        """Return this peer's signature of 64 bytes, the same for the same statement."""
        ...

    def right(self, peer: str, statement: Statement, signature: bytes) -> bool:
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
