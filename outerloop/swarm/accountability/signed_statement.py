"""The signed statements that evidence consists of: votes, promises, resignations, payloads and verdicts.

The statements of the consensus are those of consensus/statements.py. A verdict is that of audit/verdict.py. A payload's
statement contains its number and hash, and the number and root of the run's state that it reports, if it reports one
(transfer/signed_payload.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outerloop.swarm.consensus.hotstuff.votes import justified_view
from outerloop.swarm.consensus.statements import Statement
from outerloop.swarm.validation import (
    MAX_NUMBER,
    MAX_VIEW,
    MalformedMessage,
    checked_int,
    digest,
    peer_id,
    quote,
    signature,
)

ACCEPT, PROMISE, PAYLOAD = "accept", "promise", "payload"
PREPARE, COMMIT, RESIGN = "prepare", "commit", "resign"
VERDICT = "verdict"
MAX_LEAF = 1 << 20
"""Maximum index of a leaf in a verdict."""


@dataclass(frozen=True)
class Signed:
    """A statement and its signer's signature. The statement begins with its context (statements.py)."""

    statement: Statement
    signature: bytes

    def to_list(self) -> list[Any]:
        return [list(self.statement), self.signature]

    @staticmethod
    def from_list(value: Any) -> Signed:
        """Parse the result of `to_list`. Raises MalformedMessage if it is invalid."""
        if type(value) is not list or len(value) != 2:
            raise MalformedMessage(f"a signed statement must be [statement, signature]; got {quote(value)}")
        return Signed(parse_statement(value[0]), signature(value[1], "a statement's signature"))


def parse_statement(value: Any) -> Statement:
    """Parse a statement. Raises MalformedMessage if it has none of the known forms."""
    if type(value) is not list or len(value) < 3:
        raise MalformedMessage(f"a statement must be a list that begins with its context; got {quote(value)}")
    context, number, *rest = value
    checked_int(number, "a statement's round", maximum=MAX_NUMBER)
    if context == ACCEPT and len(rest) == 3:
        digest(rest[0], "an accept's head")
        _view(rest[1])
        digest(rest[2], "an accepted commit")
    elif context == PROMISE and len(rest) == 4:
        _promise(*rest)
    elif context == PREPARE and len(rest) == 4:
        digest(rest[0], "a prepare vote's head")
        digest(rest[2], "a prepared commit")
        justified_view(rest[3], _view(rest[1]))
    elif context == COMMIT and len(rest) == 3:
        digest(rest[0], "a commit vote's head")
        _view(rest[1])
        digest(rest[2], "a committed commit")
    elif context == RESIGN and len(rest) == 1:
        digest(rest[0], "a resignation's head")
    elif context == PAYLOAD and len(rest) in (1, 3):
        digest(rest[0], "a payload")
        _state(*rest[1:])
    elif context == VERDICT and len(rest) == 4:
        peer_id(rest[0], "a verdict's auditor")
        digest(rest[1], "a verdict's commit")
        digest(rest[2], "a verdict's root")
        checked_int(rest[3], "a verdict's leaf", maximum=MAX_LEAF)
    else:
        raise MalformedMessage(
            f"a statement must be a vote, a promise, a resignation, a payload or a verdict; got {quote(value)}"
        )
    return (context, number, *rest)


def _promise(head: Any, view: Any, reported_view: Any, reported: Any) -> None:
    digest(head, "a promise's head")
    _view(view)
    if (reported_view, reported) != (-1, b"") or type(reported_view) is not int:
        _view(reported_view)
        digest(reported, "the commit that a promise reports")


def _state(number: Any = 0, root: Any = bytes(32)) -> None:
    """Check the number and root of the run's state that a payload reports (state_roots.py), if it reports one."""
    checked_int(number, "the number of the state that a payload reports", maximum=MAX_NUMBER)
    digest(root, "the root of the state that a payload reports")


def _view(value: Any) -> int:
    return checked_int(value, "a view", maximum=MAX_VIEW)
