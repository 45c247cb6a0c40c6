"""Records that peers sign and save in HotStuff-2: proposals, certificates of prepared commits, and locks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.consensus.statements import Statement
from outerloop.swarm.consensus.votes import rows_by_peer, signed_vote
from outerloop.swarm.validation import MAX_VIEW, MalformedMessage, checked_int, digest, fields, signature, view_number

UNJUSTIFIED = -1
"""Stands for the view of the justification if a proposal has no justification."""


def justified_view(value: Any, view: int) -> int:
    """Return `value`, the view of the justification of a proposal in `view`.

    Raises MalformedMessage unless `value` is an earlier view or UNJUSTIFIED.
    """
    return checked_int(
        value, "the view of a justification", minimum=UNJUSTIFIED, maximum=min(MAX_VIEW, max(view - 1, UNJUSTIFIED))
    )


@dataclass(frozen=True)
class PrepareCertificate:
    """Proof that more than two thirds of a roster voted for a commit in a view.

    digest      the commit's digest
    view        the view of the votes
    justified   the view of the certificate that justified the proposal, or UNJUSTIFIED
    votes       (peer, signature of statements.prepare), sorted
    """

    digest: bytes
    view: int
    justified: int
    votes: tuple[tuple[str, bytes], ...]

    def statement(self, number: int, head: bytes) -> Statement:
        return statements.prepare(number, head, self.view, self.digest, self.justified)

    def to_map(self) -> dict[str, Any]:
        return {"digest": self.digest, "view": self.view, "justified": self.justified, "votes": self.votes}

    @staticmethod
    def from_map(value: Any) -> PrepareCertificate:
        """Parse a certificate that a peer sent. Raises MalformedMessage if it is malformed."""
        found = fields(value, "a prepare certificate", ("digest", "view", "justified", "votes"))
        view = view_number(found["view"], "a prepared view")
        return PrepareCertificate(
            digest(found["digest"], "a prepared commit"),
            view,
            justified_view(found["justified"], view),
            rows_by_peer(found["votes"], "prepare votes", signed_vote),
        )


@dataclass(frozen=True)
class Lock:
    """A prepared commit: the commit and its certificate."""

    commit: Commit
    certificate: PrepareCertificate

    @property
    def view(self) -> int:
        return self.certificate.view

    def to_map(self) -> dict[str, Any]:
        return {"commit": self.commit.to_map(), "certificate": self.certificate.to_map()}

    @staticmethod
    def from_map(value: Any) -> Lock:
        """Parse a lock that a peer sent. Raises MalformedMessage if it is malformed."""
        found = fields(value, "a lock", ("commit", "certificate"))
        return Lock(*_certified(found["commit"], found["certificate"]))


@dataclass(frozen=True)
class Proposal:
    """A leader's proposal of a commit in a view.

    `justification`: the certificate of this commit from an earlier view, or None if the commit is proposed for the
    first time. `signature`: the leader's own prepare vote.
    """

    commit: Commit
    view: int
    justification: PrepareCertificate | None
    signature: bytes

    @property
    def justified(self) -> int:
        return self.justification.view if self.justification else UNJUSTIFIED

    @property
    def statement(self) -> Statement:
        """The statement that a peer signs to vote for this proposal."""
        commit = self.commit
        return statements.prepare(commit.number, commit.parent, self.view, commit.digest, self.justified)

    def to_map(self) -> dict[str, Any]:
        justification = self.justification.to_map() if self.justification else None
        return {
            "commit": self.commit.to_map(),
            "view": self.view,
            "justification": justification,
            "signature": self.signature,
        }

    @staticmethod
    def from_map(value: Any) -> Proposal:
        """Parse a proposal that a peer sent. Raises MalformedMessage if it is malformed.

        A proposal without justification must be in the view that its commit names. A justification must be of a view
        before the proposal's.
        """
        found = fields(value, "a proposal", ("commit", "view", "justification", "signature"))
        view, signed = (
            view_number(found["view"], "a proposal's view"),
            signature(found["signature"], "a proposal's vote"),
        )
        if found["justification"] is None:
            commit = Commit.from_map(found["commit"])
            if commit.view != view:
                raise MalformedMessage(
                    f"a proposal in view {view} without justification must be of a commit that was first proposed in"
                    f" view {view}; got view {commit.view}"
                )
            return Proposal(commit, view, None, signed)
        commit, certificate = _certified(found["commit"], found["justification"])
        justified_view(certificate.view, view)
        return Proposal(commit, view, certificate, signed)


def _certified(commit: Any, certificate: Any) -> tuple[Commit, PrepareCertificate]:
    """Parse a commit with its certificate. Raises MalformedMessage unless they belong together."""
    parsed, proof = Commit.from_map(commit), PrepareCertificate.from_map(certificate)
    if proof.digest != parsed.digest or proof.view < parsed.view:
        raise MalformedMessage(f"a certificate of view {proof.view} is not about commit {parsed.number} of the message")
    return parsed, proof
