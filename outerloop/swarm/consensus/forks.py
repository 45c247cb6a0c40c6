"""Forks: where two chains of one run part, and which of the two all peers continue.

A majority of a roster decides, two majorities share a peer, and an honest peer votes once: a round that is decided
twice proves that a peer lied. Both certificates are checked (validity.certificate_error), their signatures are recorded
as evidence (equivocation.py), and the peer that lied is expelled. Then all peers continue the same chain:

    at the first round that differs    the commit whose first proposal was in the lower view; if the views are equal,
                                       the one with the smaller digest. The length of the chains plays no part

View and digest belong to the commit itself, not to one of its possible certificates. So this is a strict order of the
commits of a round and, by the first round that differs, of chains: all peers choose the same chain, and none returns to
a chain that it has left. This needs logs that reach back to the fork. `forked_earlier` detects logs that do not: they
show that there are two chains, but neither which one is better nor which peer lied.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.consensus.votes import CommitCertificate


class ForkPoint(NamedTuple):
    """The last common commit, whose roster decided the next round, and that round's commit on each of the chains."""

    base: CommitCertificate
    own: CommitCertificate
    other: CommitCertificate


def linked(log: Sequence[CommitCertificate]) -> bool:
    """Return whether a log is one piece of a chain: at least one commit, and each follows the one before it."""
    follows = (
        (later.commit.number, later.commit.parent) == (decided.commit.number + 1, decided.commit.digest)
        for decided, later in pairwise(log)
    )
    return bool(log) and all(follows)


def fork_point(ours: Sequence[CommitCertificate], theirs: Sequence[CommitCertificate]) -> ForkPoint | None:
    """Return where two linked logs part.

    Return None if they do not show that: their common rounds agree, or neither contains the last common commit.
    """
    left = {decided.commit.number: decided for decided in ours}
    right = {decided.commit.number: decided for decided in theirs}
    for number in sorted(left.keys() & right.keys()):
        own, other, base = left[number], right[number], left.get(number - 1) or right.get(number - 1)
        if own.commit.digest != other.commit.digest:
            shared = base and own.commit.parent == other.commit.parent == base.commit.digest
            return ForkPoint(base, own, other) if base and shared else None
    return None


def forked_earlier(ours: Sequence[CommitCertificate], theirs: Sequence[CommitCertificate]) -> bool:
    """Return whether two linked logs belong to different chains but do not show where these part."""
    left, right = digests(ours), digests(theirs)
    differ = any(left[number] != right[number] for number in left.keys() & right.keys())
    return differ and fork_point(ours, theirs) is None


def digests(log: Sequence[CommitCertificate]) -> dict[int, bytes]:
    """Return the digests that a linked log proves, by number: of its commits, and of the commit before them."""
    first = log[0].commit
    return {first.number - 1: first.parent} | {decided.commit.number: decided.commit.digest for decided in log}


def is_better(commit: Commit, other: Commit) -> bool:
    """Return whether all peers continue with `one`, of two commits of one round with the same parent."""
    return (commit.view, commit.digest) < (other.view, other.digest)
