"""Signed votes, and the records built from them: justified proposals and certificates of commits.

    wish           a peer wants to be in a view of the round
    pledge         a promise, in the form that is forwarded to other peers
    link           a view in which a commit was proposed, with the proof that its leader was allowed to propose it then
    accepted       an accepted proposal: the commit, with one link for each view in which it was proposed
    certificate    a decided commit, with the accepts of a majority or the commit votes of two thirds (hotstuff/)

These records are parts of messages (messages.py) and of the hard state (state.py), whose log consists of certificates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from outerloop.swarm.consensus import statements
from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.consensus.resignation import Resignations, parse_resignations
from outerloop.swarm.consensus.statements import Statement
from outerloop.swarm.validation import (
    MalformedMessage,
    ascending,
    digest,
    fields,
    items,
    peer_id,
    quote,
    row,
    signature,
    view_number,
)

T = TypeVar("T", bound=tuple[Any, ...])


class ViewWish(NamedTuple):
    """A peer's signed statement that it wants to be in this view of the round."""

    peer: str
    view: int
    signature: bytes

    @staticmethod
    def from_list(value: Any) -> ViewWish:
        """Parse a wish that a peer sent. Raises MalformedMessage if it is malformed."""
        peer, view, signed = row(value, 3, "a wish must be [peer, view, signature]")
        return ViewWish(peer_id(peer, "a wish's peer"), view_number(view), signature(signed, "a wish's signature"))


class Pledge(NamedTuple):
    """A promise in the form that is forwarded to other peers.

    `accepted`: view and digest of the last commit that the peer had accepted, or None if there was none.
    """

    peer: str
    accepted: tuple[int, bytes] | None
    signature: bytes

    @staticmethod
    def from_list(value: Any) -> Pledge:
        """Parse a pledge that a peer sent. Raises MalformedMessage if it is malformed."""
        peer, accepted, signed = row(value, 3, "a pledge must be [peer, accepted commit or nil, signature]")
        if accepted is not None:
            view, of = row(accepted, 2, "a pledge must report an accept as [view, digest]")
            accepted = view_number(view), digest(of, "a pledged commit")
        return Pledge(peer_id(peer, "a pledge's peer"), accepted, signature(signed, "a pledge's signature"))


class ChainLink(NamedTuple):
    """A view in which a commit was proposed, with the justification of this proposal.

    `pledges`: the promises of a majority that justify the proposal in this view; empty in view 0. `signature`: the
    leader's signature of its own accept.
    """

    view: int
    pledges: tuple[Pledge, ...]
    signature: bytes

    @staticmethod
    def from_list(value: Any) -> ChainLink:
        """Parse a link that a peer sent. Raises MalformedMessage if it is malformed."""
        view, pledges, signed = row(value, 3, "a link must be [view, pledges, signature]")
        known = rows_by_peer(pledges, "pledges", Pledge.from_list)
        return ChainLink(view_number(view), known, signature(signed, "a leader's signature"))


@dataclass(frozen=True)
class Accepted:
    """An accepted proposal. `links`: one per view in which the commit was proposed, in ascending order of views."""

    commit: Commit
    links: tuple[ChainLink, ...]

    @property
    def view(self) -> int:
        return self.links[-1].view

    @property
    def vote(self) -> tuple[int, bytes]:
        """The view and digest of this proposal, as a promise reports them."""
        return self.view, self.commit.digest

    def to_map(self) -> dict[str, Any]:
        return {"commit": self.commit.to_map(), "links": self.links}

    @staticmethod
    def from_map(value: Any) -> Accepted:
        """Parse an accepted proposal that a peer sent. Raises MalformedMessage if it is malformed."""
        found = fields(value, "an accepted commit", ("commit", "links"))
        commit = Commit.from_map(found["commit"])
        return Accepted(commit, _links(found["links"], commit.view, minimum=1))


@dataclass(frozen=True)
class CommitCertificate:
    """A decided commit with its proof.

    `view`: the view in which a majority accepted the commit. `accepts`: the accepting peers, sorted, each with its
    signature. `links`: one link per view in which the commit was proposed, up to `view`; empty if `view` is 0. If two
    commits of one round are decided, their links reveal which peer lied (paxos/justification.py).

    `resignations`: the resignations because of which some roster peers are not counted (resignation.py); omitted from
    the message if empty.

    `byzantine`: `accepts` are commit votes of HotStuff-2 (hotstuff/__init__.py), and there are no links. An honest peer
    signs only one of the two kinds in a run.
    """

    commit: Commit
    view: int
    accepts: tuple[tuple[str, bytes], ...]
    links: tuple[ChainLink, ...] = ()
    byzantine: bool = False
    resignations: Resignations = ()

    @property
    def statement(self) -> Statement:
        """The statement that the peers in `accepts` have signed."""
        kind = statements.commit if self.byzantine else statements.accept
        return kind(self.commit.number, self.commit.parent, self.view, self.commit.digest)

    @staticmethod
    def unproven(commit: Commit) -> CommitCertificate:
        """Return a log entry for a commit whose certificate cannot be verified. It contains no votes."""
        return CommitCertificate(commit, commit.view, (), byzantine=True)

    def to_map(self) -> dict[str, Any]:
        resigned = {"resignations": self.resignations} if self.resignations else {}
        where = {"commit": self.commit.to_map(), "view": self.view, **resigned}
        return (
            {**where, "commits": self.accepts}
            if self.byzantine
            else {**where, "accepts": self.accepts, "links": self.links}
        )

    @staticmethod
    def from_map(value: Any) -> CommitCertificate:
        """Parse a certificate that a peer sent. Raises MalformedMessage if it is malformed."""
        byzantine = isinstance(value, dict) and "commits" in value
        names = ("commits",) if byzantine else ("accepts", "links")
        resigned = ("resignations",) if isinstance(value, dict) and "resignations" in value else ()
        found = fields(value, "a decided commit", ("commit", "view", *names, *resigned))
        resignations = parse_resignations(found["resignations"]) if resigned else ()
        commit = Commit.from_map(found["commit"])
        view = view_number(found["view"], "a decided view", minimum=commit.view)
        if byzantine:
            votes = rows_by_peer(found["commits"], "commit votes", signed_vote)
            return CommitCertificate(commit, view, votes, byzantine=True, resignations=resignations)
        links = _links(found["links"], commit.view)
        if (links[-1].view if links else 0) != view:
            raise MalformedMessage(
                f"links of a decided commit must end with its view {view}; got {quote(found['links'])}"
            )
        accepts = rows_by_peer(found["accepts"], "accepts", _accept)
        return CommitCertificate(commit, view, accepts, links, resignations=resignations)


def rows_by_peer(value: Any, what: str, parse: Callable[[Any], T]) -> tuple[T, ...]:
    """Parse a list of rows that start with a peer. Raises MalformedMessage unless the peers are unique and sorted."""
    rows = tuple(parse(item) for item in items(value, what))
    ascending([row[0] for row in rows], what)
    return rows


def _links(value: Any, first_view: int, *, minimum: int = 0) -> tuple[ChainLink, ...]:
    """Parse links. Raises MalformedMessage unless their views are in ascending order, starting with `first_view`."""
    links = tuple(ChainLink.from_list(item) for item in items(value, "links", minimum=minimum))
    views = [link.view for link in links]
    if views != sorted(set(views)) or views[:1] not in ([], [first_view]):
        raise MalformedMessage(
            f"links must be in ascending order of views, starting with view {first_view}; got views {quote(views)}"
        )
    return links


def signed_vote(value: Any, what: str = "a vote") -> tuple[str, bytes]:
    """Parse a vote of a peer in a certificate. Raises MalformedMessage if it is malformed."""
    peer, signed = row(value, 2, f"{what} must be [peer, signature]")
    return peer_id(peer, f"{what}'s peer"), signature(signed, f"{what}'s signature")


def _accept(value: Any) -> tuple[str, bytes]:
    return signed_vote(value, "an accept")


def linked(log: Sequence[CommitCertificate]) -> bool:
    """Return whether a log is a contiguous part of a chain: it is not empty, and each commit follows the one before."""
    follows = (
        (later.commit.number, later.commit.parent) == (decided.commit.number + 1, decided.commit.digest)
        for decided, later in pairwise(log)
    )
    return bool(log) and all(follows)


def digests(log: Sequence[CommitCertificate]) -> dict[int, bytes]:
    """Return the digests of the commits in a linked log and of the commit before them, keyed by commit number."""
    first = log[0].commit
    return {first.number - 1: first.parent} | {decided.commit.number: decided.commit.digest for decided in log}
