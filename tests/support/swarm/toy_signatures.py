"""Statements signed without keys: the hash of who says what, so that the model tests stay fast."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache

from outerloop.swarm.consensus.commit import Commit, turns
from outerloop.swarm.consensus.statements import Statement, accept, promise
from outerloop.swarm.consensus.votes import Accepted, ChainLink, CommitCertificate, Pledge

SESSION = "r"


class ToySigner:
    """Signs as one peer, and sees when another one's name or something else than was signed is shown."""

    session = SESSION

    def __init__(self, peer: str) -> None:
        self._peer = peer

    def sign(self, statement: Statement) -> bytes:
        return toy_signature(self._peer, statement)

    def verify(self, peer: str, statement: Statement, signature: bytes) -> bool:
        return signature == toy_signature(peer, statement)


@lru_cache(maxsize=1 << 16)
def toy_signature(peer: str, statement: Statement) -> bytes:
    """64 bytes."""
    return hashlib.sha512(repr((peer, statement)).encode()).digest()


def accept_of(peer: str, commit: Commit, view: int = 0) -> bytes:
    """A peer's signed accept."""
    return toy_signature(peer, accept(commit.number, commit.parent, view, commit.digest))


def pledge_of(peer: str, commit: Commit, view: int, accepted: tuple[int, bytes] | None = None) -> Pledge:
    """A peer's signed promise in the round of a commit."""
    return Pledge(peer, accepted, toy_signature(peer, promise(commit.number, commit.parent, view, accepted)))


def proposal(
    commit: Commit, *, view: int | None = None, by: Iterable[str] = (), roster: Iterable[str] = ()
) -> Accepted:
    """A commit as its leaders propose it, first in its own view and then in this one, with the promises of `by`."""
    roster, links, told = tuple(roster) or commit.roster, [], None
    for at in sorted({commit.view, commit.view if view is None else view}):
        pledges = tuple(pledge_of(peer, commit, at, told) for peer in sorted(by)) if at else ()
        links.append(
            ChainLink(at, pledges, accept_of(turns(SESSION, commit.number, roster)[at % len(roster)], commit, at))
        )
        told = at, commit.digest
    return Accepted(commit, tuple(links))


def decided_by(peers: Iterable[str], commit: Commit, view: int = 0, *, roster: Iterable[str] = ()) -> CommitCertificate:
    """A commit with the accepts of these peers, who promised as well where that view needed it."""
    peers = sorted(peers)
    links = proposal(commit, view=view, by=peers, roster=roster).links if view else ()
    return CommitCertificate(commit, view, tuple((peer, accept_of(peer, commit, view)) for peer in peers), links)
