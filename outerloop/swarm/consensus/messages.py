"""Consensus messages that peers exchange about a round, encoded as msgpack maps.

All messages except CommitCertificate name the round and the sender's head, the last commit that it applied. The kinds
on the wire are:

    here      to all peers: the sender wants to be in this view (signed)
    wishes    signed wishes of several peers; the wishes of a majority prove that the view may be entered
    promise   to the leader of a view: the sender no longer accepts a proposal of an earlier view, and reports the
              proposal that it accepted last
    propose   from the leader to all peers: the leader proposes this commit and has accepted it; from view 1 on, with
              the justification of the proposal
    accept    to the leader: the sender holds the commit's payloads and has accepted the commit
    decided   a commit that a majority of the roster has accepted, with the names and signatures of these peers
    ask       from a peer outside the roster: the sender holds the run's state as of the head, and asks to be counted
              and admitted
    resign    to all: a peer that leaves no longer votes (resignation.py); also forwarded with wishes

Runs with exchange.trust=nobody use the messages of hotstuff/messages.py instead of promise, propose and accept.

The stream authenticates the sender, so messages have no sender field. Content that peers forward to other peers is
signed (statements.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.consensus.hotstuff import messages as hotstuff
from outerloop.swarm.consensus.hotstuff.messages import HotStuffMessage
from outerloop.swarm.consensus.resignation import Resignations, parse_resignations
from outerloop.swarm.consensus.votes import Accepted, CommitCertificate, ViewWish, rows_by_peer
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

MAX_MESSAGE_BYTES = 2 << 20
"""Maximum size of a packed message, in bytes. Large enough for a commit that was proposed in 8 views (paxos/), with its
roster, its accepts, and 1,024 participants that have ids of maximum length and have all asked to be counted."""


@dataclass(frozen=True)
class ViewChange:
    """A peer's signed wish for a view. `view`: the wanted view, which is the peer's current view or the next one."""

    number: int
    head: bytes
    view: int
    signature: bytes


@dataclass(frozen=True)
class ViewWishes:
    number: int
    head: bytes
    wishes: tuple[ViewWish, ...]


@dataclass(frozen=True)
class Promise:
    number: int
    head: bytes
    view: int
    accepted: Accepted | None
    signature: bytes

    @property
    def vote(self) -> tuple[int, bytes] | None:
        return self.accepted.vote if self.accepted else None


@dataclass(frozen=True)
class Propose:
    """A leader's proposal. `accepted`: the proposed commit, which the leader itself has accepted in this view."""

    accepted: Accepted

    @property
    def number(self) -> int:
        return self.accepted.commit.number

    @property
    def head(self) -> bytes:
        return self.accepted.commit.parent

    @property
    def view(self) -> int:
        return self.accepted.view


@dataclass(frozen=True)
class Accept:
    """A vote for a proposal.

    `digest`: digest of the accepted commit. `signature`: the sender's signature, which the leader sends to all peers.
    """

    number: int
    head: bytes
    view: int
    digest: bytes
    signature: bytes


@dataclass(frozen=True)
class JoinRequest:
    number: int
    head: bytes
    signature: bytes


@dataclass(frozen=True)
class Resigned:
    """Resignations that the sender knows, its own or those of other peers.

    `number`, `head`: the sender's current round, and the digest of its head.
    """

    number: int
    head: bytes
    resignations: Resignations


RoundMessage = ViewChange | ViewWishes | Promise | Propose | Accept | HotStuffMessage
Message = RoundMessage | CommitCertificate | JoinRequest | Resigned
KINDS: dict[type[Message], str] = {
    ViewChange: "here",
    ViewWishes: "wishes",
    Promise: "promise",
    Propose: "propose",
    Accept: "accept",
    CommitCertificate: "decided",
    JoinRequest: "ask",
    Resigned: "resign",
}
"""Message class -> its kind on the wire, which must stay the same even if the class is renamed."""
FIELDS = {
    "here": ("number", "head", "view", "signature"),
    "wishes": ("number", "head", "wishes"),
    "promise": ("number", "head", "view", "accepted", "signature"),
    "propose": ("accepted",),
    "accept": ("number", "head", "view", "digest", "signature"),
    "decided": ("decided",),
    "ask": ("number", "head", "signature"),
    "resign": ("number", "head", "resignations"),
}


def to_map(message: Message) -> dict[str, Any]:
    """Return a message as a map for msgpack, including its kind."""
    if isinstance(message, HotStuffMessage):
        return hotstuff.to_map(message)
    kind = {"kind": KINDS[type(message)]}
    if isinstance(message, CommitCertificate):
        return {**kind, "decided": message.to_map()}
    if isinstance(message, Propose):
        return {**kind, "accepted": message.accepted.to_map()}
    where = {**kind, "number": message.number, "head": message.head}
    if isinstance(message, ViewWishes):
        return {**where, "wishes": message.wishes}
    if isinstance(message, Resigned):
        return {**where, "resignations": message.resignations}
    where["signature"] = message.signature
    if isinstance(message, JoinRequest):
        return where
    where["view"] = message.view
    if isinstance(message, Accept):
        return {**where, "digest": message.digest}
    if isinstance(message, Promise):
        return {**where, "accepted": message.accepted.to_map() if message.accepted else None}
    return where


def from_map(value: Any) -> Message:
    """Parse an untrusted map as a message. Raises MalformedMessage if the map is malformed."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind in hotstuff.FIELDS:
        return hotstuff.from_map(value)
    if not isinstance(kind, str) or kind not in FIELDS:
        raise MalformedMessage(f"a message must be a map whose kind is one of {', '.join(FIELDS)}; got {quote(value)}")
    found = fields(value, kind, ("kind", *FIELDS[kind]))
    if kind == "decided":
        return _decided(found["decided"])
    if kind == "propose":
        return Propose(_proposal(found["accepted"]))
    number = checked_int(found["number"], "a round's number", maximum=MAX_NUMBER)
    head = digest(found["head"], "a head")
    if kind == "wishes":
        return ViewWishes(number, head, rows_by_peer(found["wishes"], "wishes", ViewWish.from_list))
    if kind == "resign":
        return Resigned(number, head, parse_resignations(found["resignations"]))
    signed = signature(found["signature"], f"the signature of {kind}")
    if kind == "ask":
        return JoinRequest(number, head, signed)
    view = view_number(found["view"], minimum=int(kind == "promise"))
    if kind == "accept":
        return Accept(number, head, view, digest(found["digest"], "an accepted commit"), signed)
    if kind == "here":
        return ViewChange(number, head, view, signed)
    return Promise(number, head, view, _earlier(found["accepted"], number, head, view), signed)


def _decree(commit: Commit) -> Commit:
    checked_int(
        commit.number, "a decided round's number", maximum=MAX_NUMBER
    )  # not -1, which is the number of the genesis commit
    return commit


def _decided(value: Any) -> CommitCertificate:
    decided = CommitCertificate.from_map(value)
    _decree(decided.commit)
    return decided


def _proposal(value: Any) -> Accepted:
    accepted = Accepted.from_map(value)
    _decree(accepted.commit)
    return accepted


def _earlier(value: Any, number: int, head: bytes, view: int) -> Accepted | None:
    """Parse the proposal that a promise reports as accepted; None if it reports none.

    Raises MalformedMessage unless the proposal is for the promise's round and head, and from an earlier view.
    """
    if value is None:
        return None
    accepted = _proposal(value)
    if (accepted.commit.number, accepted.commit.parent) != (number, head) or accepted.view >= view:
        raise MalformedMessage(
            "a promise must report a proposal accepted in an earlier view of the same round and chain; got one of"
            f" commit {accepted.commit.number}, view {accepted.view}, in a promise for commit {number}, view {view}"
        )
    return accepted
