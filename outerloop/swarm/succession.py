"""Who decides the next round: its roster is proposed with the commit and is fixed when the commit is.

    leaves    who was absent from `absent_rounds` commits in a row, this one included, and could have been in each
    enters    who asked and proved to hold the head, as long as this commit's participants stay more than half:
              they are alive, and newcomers who vanish again cannot take the majority with them

None of this is needed for safety, so acceptors do not check it. It is needed to go on: a dead peer that stays counts
against the majority. A participant never leaves, so no roster is smaller than min_peers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from outerloop.swarm.commits import Commit, Participant
from outerloop.swarm.fields import MAX_PEERS


def next_roster(
    history: Sequence[Commit], participants: Iterable[Participant], asked: Iterable[str], *, absent_rounds: int
) -> tuple[str, ...]:
    """`history`: the last commits, oldest first; the last one's roster is this round's."""
    roster, present = history[-1].roster, {one.peer for one in participants}
    stay = set(roster) - (_absent(history, absent_rounds - 1) - present)
    room = min(
        max(1, 2 * len(present) - 1 - len(stay)), MAX_PEERS - len(stay)
    )  # one may always enter a lone peer's run
    return tuple(sorted(stay | set(sorted(set(asked) - stay)[:room])))


def _absent(history: Sequence[Commit], commits: int) -> set[str]:
    """Who was absent from each of the last so many commits, although in the roster that decided it."""
    absent, known = set(history[-1].roster), list(pairwise(history))
    if commits > len(known):
        return set()
    for before, commit in known[len(known) - commits :]:
        absent &= set(before.roster) - {one.peer for one in commit.participants}
    return absent
