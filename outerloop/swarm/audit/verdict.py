"""Define an auditor's signed verdict on one window of a peer's round.

    leaf     number of the first leaf that differs, MATCH if all replayed leaves are equal, or REFUSED if the peer did
             not send the states that it committed to, or committed to none
    signed   (VERDICT, session, auditor, number, peer, commit, root, leaf)

A single verdict proves nothing: it is only the claim of one auditor. If both auditors that the commit picked name the
same differing leaf, their two verdicts are evidence (accountability/evidence.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outerloop.swarm.access.signatures import Signatures
from outerloop.swarm.accountability.signed_statement import MAX_LEAF, VERDICT, Signed
from outerloop.swarm.audit.leaves import MATCH, REFUSED
from outerloop.swarm.audit.picks import Pick
from outerloop.swarm.validation import MalformedMessage, checked_int, id_of, quote, signature


@dataclass(frozen=True)
class Verdict:
    """The verdict of `auditor` (a peer name) on the window `pick`."""

    pick: Pick
    auditor: str
    leaf: int
    signature: bytes

    @staticmethod
    def sign(pick: Pick, leaf: int, signatures: Signatures, *, session: str, own: str) -> Verdict:
        """Return this peer's verdict. `own`: this peer's name."""
        return Verdict(pick, own, leaf, signatures.sign(VERDICT, session, *_fields(pick, own, leaf)))

    @property
    def differs(self) -> bool:
        """Return whether the auditor found a differing leaf."""
        return self.leaf >= 0

    @property
    def outcome(self) -> str:
        """The verdict in words."""
        return {MATCH: "match", REFUSED: "refused"}.get(self.leaf, f"first differing leaf {self.leaf}")

    @property
    def signed(self) -> Signed:
        """The verdict as a statement for evidence."""
        pick = self.pick
        return Signed((VERDICT, pick.number, self.auditor, pick.commit, pick.header.root, self.leaf), self.signature)

    def to_row(self) -> dict[str, int | str]:
        """Return the verdict as a row of the file of verdicts."""
        return {
            "round": self.pick.number,
            "peer": self.pick.peer,
            "commit": self.pick.commit.hex(),
            "root": self.pick.header.root.hex(),
            "window": self.pick.window,
            "auditor": self.auditor,
            "outcome": self.outcome,
            "signature": self.signature.hex(),
        }

    def to_list(self) -> list[Any]:
        return [self.leaf, self.signature]

    @staticmethod
    def of(value: Any, pick: Pick, auditor: str, signatures: Signatures, *, session: str) -> Verdict:
        """Parse and verify the verdict of `auditor` about `pick`. Raises MalformedMessage if it is not valid."""
        if type(value) is not list or len(value) != 2:
            raise MalformedMessage(f"a verdict must be [leaf, signature]; got {quote(value)}")
        leaf = checked_int(value[0], "the leaf of a verdict", minimum=REFUSED, maximum=MAX_LEAF)
        verdict = Verdict(pick, auditor, leaf, signature(value[1], "a verdict's signature"))
        fields = _fields(pick, auditor, leaf)
        if not signatures.verify(verdict.signature, VERDICT, session, *fields, by=id_of(auditor)):
            raise MalformedMessage("a verdict is not signed by its auditor")
        return verdict


def _fields(pick: Pick, auditor: str, leaf: int) -> tuple[str | int | bytes, ...]:
    return auditor, pick.number, pick.peer, pick.commit, pick.header.root, leaf
