"""Forks: find where two chains of one run diverge, and choose the chain that all peers continue.

A round is decided by a majority of its roster, two majorities share a peer, and an honest peer votes once. So a round
that is decided twice proves that a peer lied. Both certificates are checked (validity.certificate_error), their
signatures are recorded as evidence (equivocation.py), and the peer that lied is expelled. Then all peers continue the
chain that is better in the first round in which the chains differ: the commit that was first proposed in the lower view
is better; if the views are equal, the commit with the smaller digest. The length of the chains is irrelevant.

View and digest are part of the commit, and do not depend on its certificate. So the rule strictly orders the commits of
a round and, by the first round that differs, the chains: all peers choose the same chain, and no peer returns to a
chain that it has left. The choice requires logs that reach back to the fork. `forked_earlier` detects logs that do not:
they show that two chains exist, but neither which chain is better nor which peer lied.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.consensus.votes import CommitCertificate


class ForkPoint(NamedTuple):
    """The last common commit, `base`, and the next round's commit on this peer's chain and on the other chain."""

    base: CommitCertificate
    own: CommitCertificate
    other: CommitCertificate


def linked(log: Sequence[CommitCertificate]) -> bool:
    """Return whether a log is a contiguous part of a chain: it is not empty, and each commit follows the one before."""
    follows = (
        (later.commit.number, later.commit.parent) == (decided.commit.number + 1, decided.commit.digest)
        for decided, later in pairwise(log)
    )
    return bool(log) and all(follows)


def fork_point(ours: Sequence[CommitCertificate], theirs: Sequence[CommitCertificate]) -> ForkPoint | None:
    """Return the point at which two linked logs diverge.

    Return None if the logs do not show that point, because they agree on all common rounds, or because neither log
    contains the last common commit.
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
    """Return whether two linked logs belong to different chains but do not show where the chains diverge."""
    left, right = digests(ours), digests(theirs)
    differ = any(left[number] != right[number] for number in left.keys() & right.keys())
    return differ and fork_point(ours, theirs) is None


def digests(log: Sequence[CommitCertificate]) -> dict[int, bytes]:
    """Return the digests of the commits in a linked log and of the commit before them, keyed by commit number."""
    first = log[0].commit
    return {first.number - 1: first.parent} | {decided.commit.number: decided.commit.digest for decided in log}


def is_better(commit: Commit, other: Commit) -> bool:
    """Return whether peers must prefer `commit` to `other`, a commit of the same round with the same parent."""
    return (commit.view, commit.digest) < (other.view, other.digest)
