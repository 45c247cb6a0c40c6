"""Who decides the next round: its roster is proposed with the commit and is fixed when the commit is.

    leaves    who was absent from `absent_rounds` commits in a row, this one included, and could have been in each
    learns    who asked, signed, after the head of this round: it is asked for payloads, and those that are here are
              counted, but it has no vote and does not lead (leading.py, agreement.py)
    enters    a learner whose payload this commit counts, as long as the peers of this round's roster that take part in
              it stay more than half of the next one: they are alive, and newcomers who vanish later do not stop them

With honest peers safety does not need it: a round is decided by whatever roster the commit before it names. It is
needed to go on, since a dead peer that stays counts against the majority; and against liars, who would name a roster
of their own. So every acceptor recomputes it (scrutiny.py), and only who was absent is left to the leader's word: a
leader whose log is short lets all stay. A peer of the roster that takes part never leaves, so no roster is smaller than
min_peers. Learners are those of Raft (Ongaro, "Consensus: Bridging Theory and Practice", 2014, section 4.2.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from outerloop.swarm.ballots import Decided
from outerloop.swarm.commits import Commit, Participant
from outerloop.swarm.fields import MAX_PEERS


def next_roster(
    history: Sequence[Commit], participants: Iterable[Participant], *, absent_rounds: int
) -> tuple[str, ...]:
    """Return the peers that decide the next round, in order.

    `history`: the last commits, oldest first; the last one's roster is this round's.
    """
    present = {one.peer for one in participants}
    stay = set(history[-1].roster) - (absent(history, absent_rounds - 1) - present)
    return grown(history[-1].roster, stay, present)


def grown(roster: Iterable[str], stay: set[str], present: set[str]) -> tuple[str, ...]:
    """Return those of a roster that stay, and the learners that enter, in order.

    room = 2 |present voters| - 1 - |stay|, and at least 1 where one peer is alone: nobody could ever join it otherwise.
    """
    room = max(int(len(stay) == 1), 2 * len(present.intersection(roster)) - 1 - len(stay))
    learners = sorted(present.difference(roster))
    return tuple(sorted(stay | set(learners[: max(0, min(room, MAX_PEERS - len(stay)))])))


def absent(history: Sequence[Commit], commits: int) -> set[str]:
    """Return who was absent from each of the last so many commits, although in the roster that decided it."""
    missing, known = set(history[-1].roster), list(pairwise(history))
    if commits > len(known):
        return set()
    for before, commit in known[len(known) - commits :]:
        missing &= set(before.roster) - {one.peer for one in commit.participants}
    return missing


def tells(log: Sequence[Decided], commits: int) -> bool:
    """Return whether a log tells who was absent from the last so many commits: it is long enough, or whole."""
    return len(log) > commits or not log[0].accepts
