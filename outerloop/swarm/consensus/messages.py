"""Messages between peers about a round, as msgpack maps. All but CommitCertificate name the round and the sender's
head.

    here      to all: I want to be in this view (signed)
    wishes    the same from several peers; from a majority they are a certificate for the view that all of them want
    promise   to the view's leader: I accept nothing of an earlier view any more, and this is what I have accepted
    propose   from the leader to all: I propose and have accepted this commit; after view 0 with its justification
    accept    to the leader: I hold the commit's payloads and have accepted it
    decided   a majority of the roster has accepted it: these peers, with their signatures
    ask       from a peer outside the roster: I hold the head; count my payload and admit me

The stream authenticates the sender, so messages have no field for it. Content that is shown to third peers is signed
(statements.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.validation import (
    MAX_NUMBER,
    MAX_VIEW,
    MalformedMessage,
    ascending,
    checked_int,
    digest,
    fields,
    items,
    peer_id,
    quote,
    signature,
)

MAX_MESSAGE_BYTES = 2 << 20
"""Size limit of any message as msgpack. Enough for 1024 participants with the longest ids that all asked to be counted,
the roster, the accepts and 8 views in which the commit was proposed (justification.py)."""

T = TypeVar("T")


class ViewWish(NamedTuple):
    """A signed statement of a peer that it wants to be in a view of the round."""

    peer: str
    view: int
    signature: bytes

    @staticmethod
    def from_list(value: Any) -> ViewWish:
        """Parse and check a value that a peer sent. Raises MalformedMessage."""
        peer, view, signed = _row(value, 3, "a wish is [peer, view, signature]")
        return ViewWish(peer_id(peer, "a wish's peer"), _view(view), signature(signed, "a wish's signature"))


class Pledge(NamedTuple):
    """A promise in the form that is forwarded to others: the peer, what it had accepted (view, digest), signature."""

    peer: str
    accepted: tuple[int, bytes] | None
    signature: bytes

    @staticmethod
    def from_list(value: Any) -> Pledge:
        """Parse and check a value that a peer sent. Raises MalformedMessage."""
        peer, accepted, signed = _row(value, 3, "a pledge is [peer, what it accepted, signature]")
        if accepted is not None:
            view, of = _row(accepted, 2, "a pledge reports an accept as [view, digest]")
            accepted = _view(view), digest(of, "a pledged commit")
        return Pledge(peer_id(peer, "a pledge's peer"), accepted, signature(signed, "a pledge's signature"))


class ChainLink(NamedTuple):
    """A view in which a commit was proposed, with the promises of a majority that justify it there (none in view 0) and
    the signature of the leader's accept."""

    view: int
    pledges: tuple[Pledge, ...]
    signature: bytes

    @staticmethod
    def from_list(value: Any) -> ChainLink:
        """Parse and check a value that a peer sent. Raises MalformedMessage."""
        view, pledges, signed = _row(value, 3, "a link is [view, pledges, signature]")
        known = _rows(pledges, "pledges", Pledge.from_list)
        return ChainLink(_view(view), known, signature(signed, "a leader's signature"))


@dataclass(frozen=True)
class Accepted:
    """A proposal that was accepted: the commit, and a link for each view in which it was proposed, latest view last."""

    commit: Commit
    links: tuple[ChainLink, ...]

    @property
    def view(self) -> int:
        return self.links[-1].view

    @property
    def vote(self) -> tuple[int, bytes]:
        """The view and digest that a promise reports."""
        return self.view, self.commit.digest

    def to_map(self) -> dict[str, Any]:
        return {"commit": self.commit.to_map(), "links": self.links}

    @staticmethod
    def from_map(value: Any) -> Accepted:
        """Parse and check a value that a peer sent. Raises MalformedMessage."""
        found = fields(value, "an accepted commit", ("commit", "links"))
        commit = Commit.from_map(found["commit"])
        return Accepted(commit, _links(found["links"], commit.view, minimum=1))


@dataclass(frozen=True)
class ViewChange:
    """A peer's wish for a view. `view`: the view that it wants to be in, at most one beyond its current one."""

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
    """A leader's proposal. `accepted`: the proposal, which the leader has accepted in the view of the proposal."""

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
    """A vote for a proposal. `digest`: of the accepted commit. `signature`: this peer's, which is shown to all."""

    number: int
    head: bytes
    view: int
    digest: bytes
    signature: bytes


@dataclass(frozen=True)
class CommitCertificate:
    """A decided commit with its proof. `view`: in which a majority accepted it. `accepts`: the accepting peers, in
    order, each with its signature.

    `links`: the views in which it was proposed, ending with `view`; none if that is view 0. The links of two decided
    commits of one round reveal which peer lied (justification.py).
    """

    commit: Commit
    view: int
    accepts: tuple[tuple[str, bytes], ...]
    links: tuple[ChainLink, ...] = ()

    def to_map(self) -> dict[str, Any]:
        return {"commit": self.commit.to_map(), "view": self.view, "accepts": self.accepts, "links": self.links}

    @staticmethod
    def from_map(value: Any) -> CommitCertificate:
        """Parse and check a value that a peer sent. Raises MalformedMessage."""
        found = fields(value, "a decided commit", ("commit", "view", "accepts", "links"))
        commit = Commit.from_map(found["commit"])
        view = checked_int(found["view"], "a decided view", minimum=commit.view, maximum=MAX_VIEW)
        links = _links(found["links"], commit.view)
        if (links[-1].view if links else 0) != view:
            raise MalformedMessage(f"links of a decided commit end in its view {view}; got {quote(found['links'])}")
        return CommitCertificate(commit, view, _rows(found["accepts"], "accepts", _accept), links)


@dataclass(frozen=True)
class JoinRequest:
    number: int
    head: bytes
    signature: bytes


Message = ViewChange | ViewWishes | Promise | Propose | Accept | CommitCertificate | JoinRequest
KINDS: dict[type[Message], str] = {
    ViewChange: "here",
    ViewWishes: "wishes",
    Promise: "promise",
    Propose: "propose",
    Accept: "accept",
    CommitCertificate: "decided",
    JoinRequest: "ask",
}
"""Class of a message -> its kind on the wire, which outlives the class's name."""
NAMES = {
    "here": ("number", "head", "view", "signature"),
    "wishes": ("number", "head", "wishes"),
    "promise": ("number", "head", "view", "accepted", "signature"),
    "propose": ("accepted",),
    "accept": ("number", "head", "view", "digest", "signature"),
    "decided": ("decided",),
    "ask": ("number", "head", "signature"),
}


def to_map(message: Message) -> dict[str, Any]:
    """Return a message as a map for msgpack, with its kind."""
    kind = {"kind": KINDS[type(message)]}
    if isinstance(message, CommitCertificate):
        return {**kind, "decided": message.to_map()}
    if isinstance(message, Propose):
        return {**kind, "accepted": message.accepted.to_map()}
    where = {**kind, "number": message.number, "head": message.head}
    if isinstance(message, ViewWishes):
        return {**where, "wishes": message.wishes}
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
    """Return the message in an untrusted map. Raises MalformedMessage."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in NAMES:
        raise MalformedMessage(f"a message is a map whose kind is one of {', '.join(NAMES)}; got {quote(value)}")
    found = fields(value, kind, ("kind", *NAMES[kind]))
    if kind == "decided":
        return _decided(found["decided"])
    if kind == "propose":
        return Propose(_proposal(found["accepted"]))
    number = checked_int(found["number"], "a round's number", maximum=MAX_NUMBER)
    head = digest(found["head"], "a head")
    if kind == "wishes":
        return ViewWishes(number, head, _rows(found["wishes"], "wishes", ViewWish.from_list))
    signed = signature(found["signature"], f"the signature of {kind}")
    if kind == "ask":
        return JoinRequest(number, head, signed)
    view = _view(found["view"], minimum=int(kind == "promise"))
    if kind == "accept":
        return Accept(number, head, view, digest(found["digest"], "an accepted commit"), signed)
    if kind == "here":
        return ViewChange(number, head, view, signed)
    return Promise(number, head, view, _earlier(found["accepted"], number, head, view), signed)


def _view(value: Any, *, minimum: int = 0) -> int:
    return checked_int(value, "a view", minimum=minimum, maximum=MAX_VIEW)


def _row(value: Any, length: int, what: str) -> list[Any]:
    if type(value) is not list or len(value) != length:
        raise MalformedMessage(f"{what}; got {quote(value)}")
    return value


def _rows(value: Any, what: str, one: Callable[[Any], T]) -> tuple[T, ...]:
    """Parse rows that begin with a peer. Check that each peer comes once and in order."""
    rows = tuple(one(row) for row in items(value, what))
    ascending([row[0] for row in rows], what)  # type: ignore[index]
    return rows


def _links(value: Any, first_view: int, *, minimum: int = 0) -> tuple[ChainLink, ...]:
    """Parse links. Check that they are in the order of views and start with the view of the first proposal."""
    links = tuple(ChainLink.from_list(row) for row in items(value, "links", minimum=minimum))
    views = [link.view for link in links]
    if views != sorted(set(views)) or views[:1] not in ([], [first_view]):
        raise MalformedMessage(f"links come in the order of views, from view {first_view} on; got views {quote(views)}")
    return links


def _accept(value: Any) -> tuple[str, bytes]:
    peer, signed = _row(value, 2, "an accept is [peer, signature]")
    return peer_id(peer, "an accept's peer"), signature(signed, "an accept's signature")


def _decree(commit: Commit) -> Commit:
    checked_int(commit.number, "a decided round's number", maximum=MAX_NUMBER)  # genesis is not decided
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
    """Parse what a promise reports as accepted. It must be of the same round and head, in an earlier view."""
    if value is None:
        return None
    accepted = _proposal(value)
    if (accepted.commit.number, accepted.commit.parent) != (number, head) or accepted.view >= view:
        raise MalformedMessage("a promise reports what was accepted in an earlier view of the same round")
    return accepted
