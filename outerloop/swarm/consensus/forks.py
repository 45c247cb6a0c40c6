"""Two chains of one run: where they part, and which of the two all go on with.

A majority of a roster decides, two majorities share a peer, and an honest one votes once: a round that is decided twice
shows a peer that lied. Both certificates are looked at (scrutiny.doubt), their signatures are witnessed
(equivocation.py), and who has lied is expelled. Then all go on with the same chain:

    at the first round that differs    the commit that was proposed first in the lower view; of one view, the smaller
                                       digest. The length of the chains plays no part

Both belong to the commit itself, not to one of the certificates that it may have, so this is a strict order of the
commits of a round and, by the first round that differs, of chains: all come to the same one, and nobody goes back to
one that it has left. It takes logs that reach back to where the chains part. `apart` tells of those that do not: what
they show is that there are two chains, and neither which one is better nor who lied.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from outerloop.swarm.consensus.commit import Commit
from outerloop.swarm.consensus.messages import CommitCertificate


class ForkPoint(NamedTuple):
    """The last commit of both chains, whose roster decided the next round, and what that came to on either."""

    base: CommitCertificate
    own: CommitCertificate
    other: CommitCertificate


def linked(log: Sequence[CommitCertificate]) -> bool:
    """Whether a log is one piece of a chain: at least one commit, and each follows the one before it."""
    follows = (
        (later.commit.number, later.commit.parent) == (one.commit.number + 1, one.commit.digest)
        for one, later in pairwise(log)
    )
    return bool(log) and all(follows)


def parting(ours: Sequence[CommitCertificate], theirs: Sequence[CommitCertificate]) -> ForkPoint | None:
    """Return where two linked logs part.

    None where they do not show that: they hold the same, or neither holds the last commit of both chains.
    """
    known, told = {one.commit.number: one for one in ours}, {one.commit.number: one for one in theirs}
    for number in sorted(known.keys() & told.keys()):
        own, other, base = known[number], told[number], known.get(number - 1) or told.get(number - 1)
        if own.commit.digest != other.commit.digest:
            shared = base and own.commit.parent == other.commit.parent == base.commit.digest
            return ForkPoint(base, own, other) if base and shared else None
    return None


def apart(ours: Sequence[CommitCertificate], theirs: Sequence[CommitCertificate]) -> bool:
    """Whether two linked logs are of different chains and do not show where these part."""
    known, told = digests(ours), digests(theirs)
    differ = any(known[number] != told[number] for number in known.keys() & told.keys())
    return differ and parting(ours, theirs) is None


def digests(log: Sequence[CommitCertificate]) -> dict[int, bytes]:
    """Return what a linked log tells of a chain, by number: its commits, and the one before them."""
    first = log[0].commit
    return {first.number - 1: first.parent} | {one.commit.number: one.commit.digest for one in log}


def is_better(one: Commit, other: Commit) -> bool:
    """Whether all go on with the first of two commits of one round that follow the same commit."""
    return (one.view, one.digest) < (other.view, other.digest)
