"""Evidence against a peer: two statements with its signature that contradict each other (contradictions.py).

No honest peer signs such a pair. No other peer can forge one: a statement is valid only for its session, signer and
round (signatures.py, signed_payload.py), and two signatures of the same statement are not a pair. So the peer that
relays evidence need not be trusted: each peer checks the evidence itself.

Verdicts prove less: two auditors that lie can accuse an honest peer. So they count only from the auditors that the
commit picked, and only for peers that know that commit and its picks (ExpelledPeers.picked).

A state root that differs from the majority's (state_roots.py) is not evidence. A peer whose weights differ because of a
hardware fault reports such a root without lying, and recovers (core/verify). Moreover, the signature of a payload does
not say which chain the reported state belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgpack

from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.accountability.contradictions import contradiction
from outerloop.swarm.accountability.signed_statement import PAYLOAD, VERDICT, Signed
from outerloop.swarm.validation import MalformedMessage, fields, id_of, peer_id, quote

MAX_SESSION = 512
"""Maximum length of a session id in characters: the run's name and a suffix."""
MAX_BYTES = 4096
"""Maximum size of one piece of evidence in msgpack format; enough for fields of the maximum length."""


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
