"""Two chains of one run: where they part, who lied there, and which of the two all go on with.

A majority of a roster decides, two majorities share a peer, and an honest one votes once: a round that is decided twice
shows a peer that lied, in the two Decided alone (justification.py). It is expelled, and all go on with the same chain:

    at the first round that differs    the commit that was decided in the lower view; of one view, the smaller digest

What is better does not depend on who compares, or on what came after, so all come to the same chain, one after the
other, and nobody goes back to one that it has left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import product

from outerloop.swarm.ballots import Decided
from outerloop.swarm.evidence import ACCEPT, Evidence, Signed, contradiction, guilty
from outerloop.swarm.memory import leader
from outerloop.swarm.signatures import Signatures
from outerloop.swarm.statements import accept, promise

Roster = tuple[str, ...]


def parting(ours: Sequence[Decided], theirs: Sequence[Decided]) -> tuple[Decided, Decided, Roster] | None:
    """Return the two commits of the first round that two logs decide differently, and the roster that decided it.

    None where the logs do not show that: they hold the same, or no commit that both chains have in common.
    """
    known = {one.commit.number: one for one in ours}
    for other in sorted(theirs, key=lambda one: one.commit.number):
        number, own = other.commit.number, known.get(other.commit.number)
        before = known.get(number - 1)
        if own is None or before is None or own.commit.digest == other.commit.digest:
            continue
        return (own, other, before.commit.roster) if other.commit.parent == before.commit.digest else None
    return None


def is_better(one: Decided, other: Decided) -> bool:
    """Whether all go on with the first of two decided commits of one round that follow the same commit."""
    return (one.view, one.commit.digest) < (other.view, other.commit.digest)


def lies(one: Decided, other: Decided, *, sitting: str, roster: Roster, signatures: Signatures) -> list[Evidence]:
    """Return evidence against each peer that two decided commits of one round prove to have lied, checked."""
    said: dict[str, list[Signed]] = defaultdict(list)
    for decided in (one, other):
        for peer, signed in _statements(decided, sitting, roster):
            said[peer].append(signed)
    found = (_first_lie(sitting, peer, all_of_it, signatures) for peer, all_of_it in sorted(said.items()))
    return [evidence for evidence in found if evidence is not None]


def _first_lie(sitting: str, peer: str, said: list[Signed], signatures: Signatures) -> Evidence | None:
    accepts = [one for one in said if one.statement[0] == ACCEPT]
    pairs = (pair for pair in product(accepts, said) if contradiction(pair[0].statement, pair[1].statement))
    found = (Evidence.of(sitting, peer, *pair) for pair in pairs)
    return next((evidence for evidence in found if guilty(evidence, signatures)), None)


def _statements(decided: Decided, sitting: str, roster: Roster) -> Iterator[tuple[str, Signed]]:
    """All that a decided commit shows, with who is said to have signed it."""
    commit = decided.commit
    for peer, signature in decided.accepts:
        yield peer, Signed(accept(commit.number, decided.view, commit.digest), signature)
    for link in decided.links:
        first = leader(sitting, commit.number, link.view, roster)
        yield first, Signed(accept(commit.number, link.view, commit.digest), link.signature)
        for one in link.pledges:
            yield one.peer, Signed(promise(commit.number, commit.parent, link.view, one.accepted), one.signature)
