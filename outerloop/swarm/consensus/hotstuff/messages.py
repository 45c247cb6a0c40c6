"""Messages of HotStuff-2, encoded as msgpack maps. The kinds on the wire, besides those of ../messages.py:

newview    to the leader of a view: the sender has entered the view, and reports its lock
proposal   from the leader to all peers: the proposal, and the wishes that prove that the view may be entered
vote       to the leader: a prepare vote or a commit vote
prepared   from the leader to all peers: the certificate of a quorum's prepare votes
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.hotstuff.votes import UNJUSTIFIED, Lock, PrepareCertificate, Proposal, justified_view
from outerloop.swarm.consensus.statements import Statement
from outerloop.swarm.consensus.votes import ViewWish, rows_by_peer
from outerloop.swarm.validation import (
    MAX_NUMBER,
    MalformedMessage,
    checked_int,
    digest,
    fields,
    quote,
    signature,
    view_number,
)

PREPARE, COMMIT = "prepare", "commit"


@dataclass(frozen=True)
class NewView:
    """A peer's report to the leader of `view`, which the peer has entered.

    `lock`: the peer's lock, which is of an earlier view, or None if the peer is not locked.
    """

    number: int
    head: bytes
    view: int
    lock: Lock | None


@dataclass(frozen=True)
class ProposalMessage:
    """A leader's proposal. `wishes`: the proof that its view may be entered; may be empty, e.g. in view 0."""

    proposal: Proposal
    wishes: tuple[ViewWish, ...]

    @property
    def number(self) -> int:
        return self.proposal.commit.number

    @property
    def head(self) -> bytes:
        return self.proposal.commit.parent

    @property
    def view(self) -> int:
        return self.proposal.view


@dataclass(frozen=True)
class Vote:
    """A vote for the proposal of a view.

    `phase`: PREPARE or COMMIT. `justified`: the view of the proposal's justification; UNJUSTIFIED in a commit vote.
    """

    number: int
    head: bytes
    view: int
    phase: str
    digest: bytes
    justified: int
    signature: bytes

    @property
    def statement(self) -> Statement:
        if self.phase == COMMIT:
            return statements.commit(self.number, self.head, self.view, self.digest)
        return statements.prepare(self.number, self.head, self.view, self.digest, self.justified)


@dataclass(frozen=True)
class Prepared:
    number: int
    head: bytes
    certificate: PrepareCertificate

    @property
    def view(self) -> int:
        return self.certificate.view


HotStuffMessage = NewView | ProposalMessage | Vote | Prepared
FIELDS = {
    "newview": ("number", "head", "view", "lock"),
    "proposal": ("proposal", "wishes"),
    "vote": ("number", "head", "view", "phase", "digest", "justified", "signature"),
    "prepared": ("number", "head", "certificate"),
}


def to_map(message: HotStuffMessage) -> dict[str, Any]:
    """Return a message as a map for msgpack, including its kind."""
    if isinstance(message, ProposalMessage):
        return {"kind": "proposal", "proposal": message.proposal.to_map(), "wishes": message.wishes}
    where = {"number": message.number, "head": message.head}
    if isinstance(message, Prepared):
        return {"kind": "prepared", **where, "certificate": message.certificate.to_map()}
    where["view"] = message.view
    if isinstance(message, NewView):
        return {"kind": "newview", **where, "lock": message.lock.to_map() if message.lock else None}
    vote = {"phase": message.phase, "digest": message.digest, "justified": message.justified}
    return {"kind": "vote", **where, **vote, "signature": message.signature}


def from_map(value: dict[str, Any]) -> HotStuffMessage:
    """Parse an untrusted map of one of these kinds. Raises MalformedMessage if it is malformed."""
    kind = value["kind"]
    found = fields(value, kind, ("kind", *FIELDS[kind]))
    if kind == "proposal":
        wishes = rows_by_peer(found["wishes"], "wishes", ViewWish.from_list)
        proposal = Proposal.from_map(found["proposal"])
        checked_int(proposal.commit.number, "a proposed round's number", maximum=MAX_NUMBER)
        return ProposalMessage(proposal, wishes)
    number, head = checked_int(found["number"], "a round's number", maximum=MAX_NUMBER), digest(found["head"], "a head")
    if kind == "prepared":
        return Prepared(number, head, PrepareCertificate.from_map(found["certificate"]))
    if kind == "newview":
        view = view_number(found["view"], minimum=1)
        return NewView(number, head, view, _lock(found["lock"], number, head, view))
    return _vote(found, number, head)


def _lock(value: Any, number: int, head: bytes, view: int) -> Lock | None:
    if value is None:
        return None
    lock = Lock.from_map(value)
    if (lock.commit.number, lock.commit.parent) != (number, head) or lock.view >= view:
        raise MalformedMessage(
            "a report must name a lock of an earlier view of the same round and chain; got one of"
            f" commit {lock.commit.number}, view {lock.view}, in a report for commit {number}, view {view}"
        )
    return lock


def _vote(found: dict[str, Any], number: int, head: bytes) -> Vote:
    view, phase = view_number(found["view"]), found["phase"]
    if phase not in (PREPARE, COMMIT):
        raise MalformedMessage(f"a vote's phase must be {PREPARE} or {COMMIT}; got {quote(phase)}")
    justified = justified_view(found["justified"], view if phase == PREPARE else UNJUSTIFIED)
    of, signed = digest(found["digest"], "the commit of a vote"), signature(found["signature"], "a vote's signature")
    return Vote(number, head, view, phase, of, justified, signed)
