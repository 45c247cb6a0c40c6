"""Who decides the next round: its roster is proposed with the commit and is fixed when the commit is.

    leaves    who was absent from the last commits up to this one, `absent_rounds` at least, in whose rosters it was. So
              many different leaders have proposed them that one is honest where fewer than half of the roster lie
    learns    who asked, signed, after the head of this round: it is asked for payloads, and those that are here are
              counted, but it has no vote and does not lead (proposer.py, chain.py)
    enters    a learner whose payload this commit counts, as long as the peers of this round's roster that take part in
              it stay more than half of the next one: they are alive, and newcomers who vanish later do not stop them

With honest peers safety does not need it: a round is decided by whatever roster the commit before it names. It is
needed to go on, since a dead peer that stays counts against the majority; and against liars, who would name a roster
of their own. So every acceptor recomputes it (validity.py), and only who was absent is left to the leaders' word: an
honest one leaves out only whose payload it does not have in time, and a leader whose log is short lets all stay. A log
holds ROUNDS_KEPT commits, so that in rosters of more than 2 ROUNDS_KEPT peers as many leaders are enough: ROUNDS_KEPT
liars that lead one after the other drop honest peers there. A peer of the roster that takes part never leaves, so no
roster is smaller than min_peers. Learners are those of Raft (Ongaro, "Consensus: Bridging Theory and Practice", 2014,
section 4.2.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from outerloop.swarm.consensus.commit import Commit, Participant, minority
from outerloop.swarm.consensus.hard_state import ROUNDS_KEPT, HardState, leader
from outerloop.swarm.validation import MAX_PEERS


def next_roster(
    history: Sequence[Commit], participants: Iterable[Participant], *, run: str, view: int, absent_rounds: int
) -> tuple[str, ...]:
    """Return the peers that decide the next round, in order.

    `history`: the last commits, oldest first; the last one's roster is this round's. `view`: in which it is proposed.
    """
    present = {one.peer for one in participants}
    missing, _ = absent(history, run=run, view=view, absent_rounds=absent_rounds)
    return grown(history[-1].roster, set(history[-1].roster) - (missing - present), present)


def grown(roster: Iterable[str], stay: set[str], present: set[str]) -> tuple[str, ...]:
    """Return those of a roster that stay, and the learners that enter, in order.

    room = 2 |present voters| - 1 - |stay|, and at least 1 where one peer is alone: nobody could ever join it otherwise.
    """
    room = max(int(len(stay) == 1), 2 * len(present.intersection(roster)) - 1 - len(stay))
    learners = sorted(present.difference(roster))
    return tuple(sorted(stay | set(learners[: max(0, min(room, MAX_PEERS - len(stay)))])))


def absent(history: Sequence[Commit], *, run: str, view: int, absent_rounds: int) -> tuple[set[str], bool]:
    """Return who leaves unless it takes part in the commit at hand, and whether the history reaches back to tell.

    Of the roster, who was absent from the `absent_rounds - 1` commits before, and from so many that more peers of the
    roster have proposed them, the leader of this one included, than a minority of it.
    """
    roster = history[-1].roster
    missing, leaders = set(roster), {leader(run, history[-1].number + 1, view, roster)}
    enough = min(minority(roster) + 1, ROUNDS_KEPT)
    known = list(pairwise(history))
    for seen in range(len(known) + 1):
        if seen >= absent_rounds - 1 and len(leaders) >= enough:
            return missing, True
        if seen < len(known):
            before, commit = known[-1 - seen]
            missing &= set(before.roster) - {one.peer for one in commit.participants}
            leaders |= {leader(run, commit.number, commit.view, before.roster)}.intersection(roster)
    return set(), False


def tells(memory: HardState, view: int, absent_rounds: int) -> bool:
    """Return whether this log tells who was absent as every other does: it reaches back, or no other does further.

    Only the commit before the first round has no participants.
    """
    history = [one.commit for one in memory.log]
    _, told = absent(history, run=memory.run, view=view, absent_rounds=absent_rounds)
    return told or len(memory.log) == ROUNDS_KEPT or not memory.log[0].commit.participants
