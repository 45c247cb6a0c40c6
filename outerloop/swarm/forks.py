"""Two chains of one run: where they part, and which of the two all go on with.

A majority of a roster decides, two majorities share a peer, and an honest one votes once: a round that is decided twice
shows a peer that lied. Both Decided are looked at (scrutiny.doubt), their signatures are witnessed (watch.py), and who
has lied is expelled. Then all go on with the same chain:

    at the first round that differs    the commit that was decided in the lower view; of one view, the smaller digest

What is better does not depend on who compares, or on what came after, so all come to the same chain, one after the
other, and nobody goes back to one that it has left.
"""

from __future__ import annotations

from collections.abc import Sequence

from outerloop.swarm.ballots import Decided

Parting = tuple[Decided, Decided, tuple[str, ...]]


def parting(ours: Sequence[Decided], theirs: Sequence[Decided]) -> Parting | None:
    """Return our and their commit of the first round that two logs decide differently, and the roster that decided it.

    None where the logs do not show that: they hold the same, or no commit that both chains have in common.
    """
    known = {one.commit.number: one for one in ours}
    for other in sorted(theirs, key=lambda one: one.commit.number):
        number = other.commit.number
        own, before = known.get(number), known.get(number - 1)
        if own is None or before is None or own.commit.digest == other.commit.digest:
            continue
        return (own, other, before.commit.roster) if other.commit.parent == before.commit.digest else None
    return None


def is_better(one: Decided, other: Decided) -> bool:
    """Whether all go on with the first of two decided commits of one round that follow the same commit."""
    return (one.view, one.commit.digest) < (other.view, other.commit.digest)
