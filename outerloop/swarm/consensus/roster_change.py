"""The roster of the next round: it is proposed with the commit and fixed when the commit is decided.

    leave     A peer leaves the roster if it was in the rosters of the last commits, including this one, but took part
              in none of them. These must be at least `absent_rounds` commits, proposed by so many different leaders
              that one of them is honest if fewer than half of the roster lie.
    learn     A peer that sent a signed request after the head of this round is a learner. It is asked for its payload,
              which is counted if it has arrived, but it has no vote and does not lead (proposer.py, chain.py).
    enter     A learner enters the roster if this commit counts its payload, as long as the roster peers that take part
              in this commit remain more than half of the next roster. These peers are alive, so newcomers that vanish
              later cannot stop them.

If all peers are honest, safety does not need these rules: a round is decided by whatever roster the previous commit
names. Progress needs them, because a dead peer that stays in the roster counts against the majority. The rules also
prevent liars from naming a roster of their choice. So every acceptor recomputes the roster (validity.py). Only absence
is decided by the leaders: an honest leader leaves out only peers whose payloads are late, and a leader with a short log
keeps all peers. A log holds ROUNDS_KEPT commits, so in rosters of more than 2 ROUNDS_KEPT peers, ROUNDS_KEPT leaders
are enough: in such a roster, ROUNDS_KEPT liars in consecutive turns can drop honest peers. A roster peer that takes
part never leaves, so no roster is smaller than min_peers. Learners are those of Raft (Ongaro, "Consensus: Bridging
Theory and Practice", 2014, section 4.2.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from outerloop.swarm.consensus.commit import Commit, Participant, leader, minority
from outerloop.swarm.consensus.state import ROUNDS_KEPT, HardState
from outerloop.swarm.validation import MAX_PEERS


def next_roster(
    history: Sequence[Commit], participants: Iterable[Participant], *, run: str, view: int, absent_rounds: int
) -> tuple[str, ...]:
    """Return the peers that decide the next round, sorted.

    `history`: the last commits, oldest first; the last of them names this round's roster. `view`: the view of the
    proposal.
    """
    present = {participant.peer for participant in participants}
    missing, _ = absent_peers(history, run=run, view=view, absent_rounds=absent_rounds)
    return resulting_roster(history[-1].roster, set(history[-1].roster) - (missing - present), present)


def resulting_roster(roster: Iterable[str], stay: set[str], present: set[str]) -> tuple[str, ...]:
    """Return the roster peers that stay and the learners that enter, sorted.

    At most room = 2 |present voters| - 1 - |stay| learners enter. If only one peer stays, room is at least 1, because
    otherwise no peer could ever join it.
    """
    room = max(int(len(stay) == 1), 2 * len(present.intersection(roster)) - 1 - len(stay))
    learners = sorted(present.difference(roster))
    return tuple(sorted(stay | set(learners[: max(0, min(room, MAX_PEERS - len(stay)))])))


def absent_peers(history: Sequence[Commit], *, run: str, view: int, absent_rounds: int) -> tuple[set[str], bool]:
    """Return the peers that leave unless they take part in the current commit, and whether the history suffices.

    These roster peers were absent from at least the `absent_rounds - 1` previous commits. The history suffices if the
    proposers of these commits and of the current one are at least half of the roster, or ROUNDS_KEPT of its peers.
    """
    roster = history[-1].roster
    missing, leaders = set(roster), {leader(run, history[-1], view)}
    enough = min(minority(roster) + 1, ROUNDS_KEPT)
    known = list(pairwise(history))
    for seen in range(len(known) + 1):
        if seen >= absent_rounds - 1 and len(leaders) >= enough:
            return missing, True
        if seen < len(known):
            before, commit = known[-1 - seen]
            missing &= set(before.roster) - {participant.peer for participant in commit.participants}
            leaders |= {leader(run, before, commit.view)}.intersection(roster)
    return set(), False


def shows_absences(hard_state: HardState, view: int, absent_rounds: int) -> bool:
    """Return whether this log shows the same absences as every other log.

    That is so if this log reaches back far enough, or if no other log reaches further back, because this log has
    ROUNDS_KEPT commits or begins with genesis, the only commit without participants.
    """
    history = [decided.commit for decided in hard_state.log]
    _, suffices = absent_peers(history, run=hard_state.run, view=view, absent_rounds=absent_rounds)
    return suffices or len(hard_state.log) == ROUNDS_KEPT or not hard_state.log[0].commit.participants
