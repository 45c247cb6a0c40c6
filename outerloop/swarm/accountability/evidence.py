"""Evidence against a peer: two statements with its signature that contradict each other, so no honest peer signs both.

    accept, accept     for two different commits after the same head in the same view. This covers a leader that makes
                       two different proposals, because a leader accepts its own proposal
    accept, promise    after the same head: the peer accepted commit X in view v, but its promise for a later view
                       reports no accepted commit, a commit accepted before view v, or another commit in view v
    prepare, prepare   after the same head: two prepare votes in one view, for two commits or with two justifications
                       (hotstuff/__init__.py). This covers a leader that makes two proposals
    commit, commit     for two different commits after the same head in the same view
    commit, prepare    after the same head: the peer voted to commit in view v, so it was locked, and in a later view it
                       voted for a proposal whose justification is of a view before v
    resign, any vote   after the same head: the peer resigned (resignation.py), and voted or promised in that round
    payload, payload   two payloads for the same round
    verdict, verdict   not the accused peer's own statements: the two auditors that a commit picked replayed a window
                       of its inner steps, and both found the same differing leaf (audit/verdict.py)

An honest peer writes a statement to disk before sending it, and reads it back after a crash. It has one chain head at a
time and votes once per view after each head. So it never signs such a pair, even if messages are lost, repeated or
late. No other peer can forge such a pair either: a statement is valid only for its session, signer and round
(signatures.py, signed_payload.py), and two signatures of the same statement are not a pair. So the peer that relays
evidence need not be trusted: each peer checks the evidence itself.

Verdicts prove less: two auditors that lie can accuse an honest peer. So they count only from the auditors that the
commit picked, and only for peers that know that commit and its picks (ExpelledPeers.picked).

A state root that differs from the majority's (state_roots.py) is not evidence. A peer whose weights differ because of a
hardware fault reports such a root without lying, and recovers (core/verify). Moreover, the signature of a payload does
not say which chain the reported state belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack

from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.consensus.hotstuff.votes import justified_view
from outerloop.swarm.consensus.statements import Statement
from outerloop.swarm.validation import (
    MAX_NUMBER,
    MAX_VIEW,
    MalformedMessage,
    checked_int,
    digest,
    fields,
    id_of,
    peer_id,
    quote,
    signature,
)

ACCEPT, PROMISE, PAYLOAD = "accept", "promise", "payload"
PREPARE, COMMIT, RESIGN = "prepare", "commit", "resign"
VERDICT = "verdict"
MAX_LEAF = 1 << 20
"""Maximum index of a leaf in a verdict."""
MAX_SESSION = 512
"""Maximum length of a session id in characters: the run's name and a suffix."""
MAX_BYTES = 4096
"""Maximum size of one piece of evidence in msgpack format; enough for fields of the maximum length."""


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
        return Signed(_statement(value[0]), signature(value[1], "a statement's signature"))


@dataclass(frozen=True)
class Evidence:
    """Two contradicting statements. `peer`: name of the accused, which signed both in session `session`.

    If the statements are verdicts, two auditors of the accused have signed them instead. `of` sorts the statements, so
    that two statements always yield the same evidence.
    """

    session: str
    peer: str
    first: Signed
    second: Signed

    @staticmethod
    def of(session: str, peer: str, first: Signed, second: Signed) -> Evidence:
        return Evidence(session, peer, *sorted((first, second), key=_order))

    @property
    def number(self) -> int:
        """Number of the commit that the evidence is about."""
        return int(self.first.statement[1])

    @property
    def why(self) -> str:
        """A short description of the offence, or "" if the statements do not contradict each other."""
        return contradiction(self.first.statement, self.second.statement)

    @property
    def auditors(self) -> tuple[str, ...]:
        """The names of the two auditors if the statements are verdicts, else an empty tuple."""
        statements = [signed.statement for signed in (self.first, self.second)]
        return tuple(str(statement[2]) for statement in statements if statement[0] == VERDICT)

    def to_map(self) -> dict[str, Any]:
        return {
            "sitting": self.session,
            "peer": self.peer,
            "first": self.first.to_list(),
            "second": self.second.to_list(),
        }

    @staticmethod
    def from_map(value: Any) -> Evidence:
        """Parse evidence. Raises MalformedMessage if it is malformed. Signatures are not verified (see `guilty`)."""
        found = fields(value, "evidence", ("sitting", "peer", "first", "second"))
        session = found["sitting"]
        if type(session) is not str or not 0 < len(session) <= MAX_SESSION or not session.isprintable():
            raise MalformedMessage(
                f"a session id must have 1 to {MAX_SESSION} printable characters; got {quote(session)}"
            )
        first, second = Signed.from_list(found["first"]), Signed.from_list(found["second"])
        evidence = Evidence(session, peer_id(found["peer"], "the accused"), first, second)
        if _order(first) > _order(second) or not evidence.why:
            raise MalformedMessage(f"evidence must be two contradicting statements in order; got {quote(value)}")
        return evidence


def guilty(evidence: Evidence, signatures: Signatures) -> str:
    """Verify the evidence. Return the name of the peer that it convicts, or "" if it proves nothing."""
    proven = evidence.why and all(
        _is_signed(evidence, signed, signatures) for signed in (evidence.first, evidence.second)
    )
    return evidence.peer if proven else ""


def contradiction(statement: Statement, other: Statement) -> str:
    """Return the offence of a peer that signed both statements, or "" if an honest peer may sign both."""
    first, second = sorted((statement, other), key=lambda statement: str(statement[0]))
    offence = OFFENCES.get((str(first[0]), str(second[0])))
    return offence(first, second) if offence else ""


def comparable(kind: str) -> tuple[str, ...]:
    """Return the kinds of statements that a statement of this kind may contradict."""
    return tuple(second if first == kind else first for first, second in OFFENCES if kind in (first, second))


def _two_accepts(first: Any, second: Any) -> str:
    (_, number, *where, accepted), (_, other_number, *other_where, also) = first, second
    if (number, where) != (other_number, other_where) or accepted == also:
        return ""
    return f"accepted two proposals for commit {number}, view {where[-1]}"


def _left_out(accept: Any, promise: Any) -> str:
    (_, number, head, view, accepted), (_, other_number, other_head, later, reported_view, reported) = accept, promise
    if (number, head) != (other_number, other_head) or later <= view:
        return ""
    if reported_view > view or (reported_view, reported) == (view, accepted):
        return ""
    return f"promised view {later} of commit {number} and left out the proposal that it had accepted in view {view}"


def _two_prepares(first: Any, second: Any) -> str:
    (_, number, *where, prepared, justified), (_, other_number, *other_where, also, other_justified) = first, second
    if (number, where) != (other_number, other_where) or (prepared, justified) == (also, other_justified):
        return ""
    return f"voted twice for commit {number}, view {where[-1]}"


def _two_commits(first: Any, second: Any) -> str:
    (_, number, *where, committed), (_, other_number, *other_where, also) = first, second
    if (number, where) != (other_number, other_where) or committed == also:
        return ""
    return f"voted to decide two proposals for commit {number}, view {where[-1]}"


def _ignored_lock(commit: Any, prepare: Any) -> str:
    (_, number, head, view, _), (_, other_number, other_head, later, _, justified) = commit, prepare
    if (number, head) != (other_number, other_head) or later <= view or justified >= view:
        return ""
    return f"voted in view {later} of commit {number} although it was locked on a proposal of view {view}"


def _voted_after_all(vote: Any, resignation: Any) -> str:
    if vote[1:3] != resignation[1:3]:
        return ""
    return f"resigned for commit {vote[1]}, and voted or promised in view {vote[3]} of this commit"


def _two_payloads(first: Any, second: Any) -> str:
    (_, number, *payload), (_, other_number, *other) = first, second
    return f"signed two payloads for commit {number}" if number == other_number and payload != other else ""


def _two_verdicts(first: Any, second: Any) -> str:
    (_, number, auditor, *found), (_, other_number, other_auditor, *also) = first, second
    if (number, found) != (other_number, also) or id_of(auditor) == id_of(other_auditor) or found[-1] < 0:
        return ""
    return f"reported other inner steps for commit {number} than two auditors replayed, from leaf {found[-1]} on"


OFFENCES: dict[tuple[str, str], Callable[[Any, Any], str]] = {
    (ACCEPT, ACCEPT): _two_accepts,
    (ACCEPT, PROMISE): _left_out,
    (PREPARE, PREPARE): _two_prepares,
    (COMMIT, COMMIT): _two_commits,
    (COMMIT, PREPARE): _ignored_lock,
    (PAYLOAD, PAYLOAD): _two_payloads,
    (VERDICT, VERDICT): _two_verdicts,
    **{(vote, RESIGN): _voted_after_all for vote in (ACCEPT, COMMIT, PREPARE, PROMISE)},
}
"""The kinds of two statements, in alphabetical order -> a function that returns the offence that the pair proves.

The function returns "" if the two statements do not contradict each other.
"""


def _is_signed(evidence: Evidence, signed: Signed, signatures: Signatures) -> bool:
    context, number, *rest = signed.statement
    if context == VERDICT:
        auditor, *found = rest
        fields = auditor, number, evidence.peer, *found
        return signatures.verify(signed.signature, VERDICT, evidence.session, *fields, by=id_of(str(auditor)))
    order = (number, evidence.peer, *rest) if context == PAYLOAD else (evidence.peer, number, *rest)
    return signatures.verify(signed.signature, str(context), evidence.session, *order, by=id_of(evidence.peer))


def _order(signed: Signed) -> tuple[str, bytes, bytes]:
    """Return a sort key. It starts with the context, so that an accept comes before a promise."""
    return str(signed.statement[0]), msgpack.packb(signed.statement), signed.signature


def _statement(value: Any) -> Statement:
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
