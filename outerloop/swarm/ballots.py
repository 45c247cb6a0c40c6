"""What peers say to each other about a round, as maps of msgpack. All but Decided name the round and the sender's head.

    here      this is where I am: a round, and a view in which its leader may propose
    promise   to that view's leader: I accept nothing of an earlier view any more, and this is what I have accepted
    propose   the leader to all: this shall be the commit
    accept    to the leader: I hold its payloads and have accepted it
    decided   a majority of the roster has: these peers
    ask       a peer outside the roster: I hold the head, count my payload and let me in

Who says it is proven by the stream that it comes on, and no field. What is shown to others is signed: a Decided holds
the accepts of a majority, each with its peer's signature (notary.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outerloop.swarm.commits import Commit
from outerloop.swarm.fields import (
    MAX_NUMBER,
    MAX_VIEW,
    BadMessage,
    ascending,
    digest,
    fields,
    items,
    peer_id,
    quote,
    signature,
    whole,
)

MAX_MESSAGE_BYTES = 640 * 1024
"""Of any message as msgpack: 1024 participants with the longest ids, roster and accepts fit."""


@dataclass(frozen=True)
class Accepted:
    """A commit that was accepted, and in which view (never before the one in which it was proposed first)."""

    view: int
    commit: Commit

    def to_map(self) -> dict[str, Any]:
        return {"view": self.view, "commit": self.commit.to_map()}

    @staticmethod
    def from_map(value: Any) -> Accepted:
        """Raises BadMessage."""
        found = fields(value, "an accepted commit", ("view", "commit"))
        commit = Commit.from_map(found["commit"])
        return Accepted(whole(found["view"], "an accepted view", least=commit.view, most=MAX_VIEW), commit)


@dataclass(frozen=True)
class Here:
    number: int
    head: bytes
    view: int


@dataclass(frozen=True)
class Promise:
    number: int
    head: bytes
    view: int
    accepted: Accepted | None


@dataclass(frozen=True)
class Propose:
    """`accepted`: the proposal, and the view in which it is made; its leader has accepted it."""

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
    """`digest`: of the commit that is accepted. `signature`: of this peer over it, to be shown to all."""

    number: int
    head: bytes
    view: int
    digest: bytes
    signature: bytes


@dataclass(frozen=True)
class Decided:
    """`view`: in which a majority accepted it. `accepts`: who did, in order, each with its signature."""

    commit: Commit
    view: int
    accepts: tuple[tuple[str, bytes], ...]

    def to_map(self) -> dict[str, Any]:
        return {"commit": self.commit.to_map(), "view": self.view, "accepts": [list(one) for one in self.accepts]}

    @staticmethod
    def from_map(value: Any) -> Decided:
        """Raises BadMessage."""
        found = fields(value, "a decided commit", ("commit", "view", "accepts"))
        commit = Commit.from_map(found["commit"])
        accepts = tuple(_accept(one) for one in items(found["accepts"], "accepts"))
        ascending([peer for peer, _ in accepts], "accepts")
        return Decided(commit, whole(found["view"], "a decided view", least=commit.view, most=MAX_VIEW), accepts)


@dataclass(frozen=True)
class Ask:
    number: int
    head: bytes


Message = Here | Promise | Propose | Accept | Decided | Ask
NAMES = {
    "here": ("number", "head", "view"),
    "promise": ("number", "head", "view", "accepted"),
    "propose": ("accepted",),
    "accept": ("number", "head", "view", "digest", "signature"),
    "decided": ("decided",),
    "ask": ("number", "head"),
}


def to_map(message: Message) -> dict[str, Any]:
    """A message as a map that msgpack takes, with its kind."""
    kind = {"kind": type(message).__name__.lower()}
    if isinstance(message, Decided):
        return {**kind, "decided": message.to_map()}
    if isinstance(message, Propose):
        return {**kind, "accepted": message.accepted.to_map()}
    where = {**kind, "number": message.number, "head": message.head}
    if isinstance(message, Ask):
        return where
    where["view"] = message.view
    if isinstance(message, Accept):
        return {**where, "digest": message.digest, "signature": message.signature}
    if isinstance(message, Promise):
        return {**where, "accepted": message.accepted.to_map() if message.accepted else None}
    return where


def from_map(value: Any) -> Message:
    """A stranger's map -> a message. Raises BadMessage."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in NAMES:
        raise BadMessage(f"a message is a map whose kind is one of {', '.join(NAMES)}; came {quote(value)}")
    found = fields(value, kind, ("kind", *NAMES[kind]))
    if kind == "decided":
        return _decided(found["decided"])
    if kind == "propose":
        return Propose(_proposal(found["accepted"]))
    number = whole(found["number"], "a round's number", most=MAX_NUMBER)
    head = digest(found["head"], "a head")
    if kind == "ask":
        return Ask(number, head)
    view = whole(found["view"], "a view", least=int(kind == "promise"), most=MAX_VIEW)
    if kind == "accept":
        signed = signature(found["signature"], "an accept's signature")
        return Accept(number, head, view, digest(found["digest"], "an accepted commit"), signed)
    if kind == "here":
        return Here(number, head, view)
    return Promise(number, head, view, _earlier(found["accepted"], number, head, view))


def _decree(commit: Commit) -> Commit:
    whole(commit.number, "a decided round's number", most=MAX_NUMBER)  # genesis is not decided
    return commit


def _decided(value: Any) -> Decided:
    decided = Decided.from_map(value)
    _decree(decided.commit)
    return decided


def _accept(value: Any) -> tuple[str, bytes]:
    if type(value) is not list or len(value) != 2:
        raise BadMessage(f"an accept is [peer, signature]; came {quote(value)}")
    return peer_id(value[0], "an accept's peer"), signature(value[1], "an accept's signature")


def _proposal(value: Any) -> Accepted:
    accepted = Accepted.from_map(value)
    _decree(accepted.commit)
    return accepted


def _earlier(value: Any, number: int, head: bytes, view: int) -> Accepted | None:
    """What a promise says was accepted: of the same round after the same head, in an earlier view."""
    if value is None:
        return None
    accepted = _proposal(value)
    if (accepted.commit.number, accepted.commit.parent) != (number, head) or accepted.view >= view:
        raise BadMessage("a promise tells what was accepted in an earlier view of the same round")
    return accepted
