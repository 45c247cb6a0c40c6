"""Determine the next round's roster, which is proposed with the commit and fixed when the commit is decided.

    leave     A peer leaves the roster if it was in the rosters of the last commits, including this one, but took part
              in none of them. These must be at least `absent_rounds` commits, proposed by so many different leaders
              that one of them is honest if fewer than half of the roster lie.
    resign    A peer that has resigned (resignation.py) leaves with this commit, even if the commit counts its payload,
              provided that min_peers of the peers that stay take part in this commit. These peers are alive, so they
              can continue. Otherwise it stays in the roster, and may help them when it returns.
    learn     A peer outside the roster that sent a signed request for this round is a learner. The other peers ask for
              its payload and count it if it arrives, but a learner neither votes nor leads (proposer.py, chain.py).
    enter     A learner enters the roster if this commit counts its payload, as long as the roster peers that take part
              in this commit and stay remain enough to decide in the next roster: more than half of it, or more than two
              thirds (quorum.py). These peers are alive, so learners that vanish later cannot stop them.

If all peers are honest, safety does not need these rules: a round is decided by whatever roster the previous commit
names. Progress needs them, because a dead peer that stays in the roster counts against the majority. The rules also
prevent liars from naming a roster of their choice, so every acceptor recomputes the roster (validity.py). The leaders
decide only which peers were absent: an honest leader leaves out only peers whose payloads are late, and a leader with a
log that is too short keeps all peers. A log holds ROUNDS_KEPT commits, so in rosters of more than 2 * ROUNDS_KEPT
peers, ROUNDS_KEPT different leaders are enough: in such a roster, ROUNDS_KEPT liars in consecutive turns can drop
honest peers. A roster peer that takes part leaves only if it has resigned, so no roster is smaller than min_peers.
Learners are as in Raft (Ongaro, "Consensus: Bridging Theory and Practice", 2014, section 4.2.1).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise

from outerloop.swarm.consensus.commit import Commit, Participant, leader, minority
from outerloop.swarm.consensus.quorum import MAJORITY, Quorum
from outerloop.swarm.consensus.state import ROUNDS_KEPT, HardState
from outerloop.swarm.validation import MAX_PEERS


def next_roster(
    history: Sequence[Commit],
    participants: Iterable[Participant],
    *,
    session: str,
    view: int,
    absent_rounds: int,
    quorum: Quorum = MAJORITY,
    resigned: Collection[str] = (),
    min_peers: int = 1,
) -> tuple[str, ...]:
    """Return the roster of the next round, sorted.

    `history`: the last commits, oldest first; the last one names the roster of this round. `view`: the view in which
    this round's commit is proposed. `resigned`: the peers of this roster that have resigned.
    """
    roster, present = history[-1].roster, {participant.peer for participant in participants}
    missing, _ = absent_peers(history, session=session, view=view, absent_rounds=absent_rounds)
    stay = set(roster) - (missing - present)
    if len(stay.intersection(present).difference(resigned)) >= min_peers:
        stay.difference_update(resigned)
    return resulting_roster(roster, stay, present, quorum)


def resulting_roster(
    roster: Iterable[str], stay: set[str], present: set[str], quorum: Quorum = MAJORITY
) -> tuple[str, ...]:
    """Return the next roster, sorted: the roster peers that stay, and the learners that enter.

    `present`: the peers whose payloads are counted. If s peers stay and p of these are present, the number of entering
    learners is limited so that the p peers are a quorum of the next roster; with majorities, at most 2 p - 1 - s
    learners enter. If this rule could never let a peer enter, because s is too small (1, or 2 with a quorum of two
    thirds), one learner may enter nevertheless.
    """
    stuck = quorum.largest_roster(len(stay)) == len(stay)
    room = max(int(stuck), quorum.largest_roster(len(present.intersection(stay))) - len(stay))
    learners = sorted(present.difference(roster))
    return tuple(sorted(stay | set(learners[: max(0, min(room, MAX_PEERS - len(stay)))])))


def absent_peers(history: Sequence[Commit], *, session: str, view: int, absent_rounds: int) -> tuple[set[str], bool]:
    """Return the peers to drop if they are absent from the current commit too, and whether the history is long enough.

    These roster peers were absent from at least the last `absent_rounds - 1` commits. The history is long enough if the
    peers that proposed these commits and the current one are at least half of the roster, or ROUNDS_KEPT of its peers.
    If the history is too short, the returned set is empty.
    """
    roster = history[-1].roster
    missing, leaders = set(roster), {leader(session, history[-1], view)}
    enough = min(minority(roster) + 1, ROUNDS_KEPT)
    known = list(pairwise(history))
    for seen in range(len(known) + 1):
        if seen >= absent_rounds - 1 and len(leaders) >= enough:
            return missing, True
        if seen < len(known):
            before, commit = known[-1 - seen]
            missing &= set(before.roster) - {participant.peer for participant in commit.participants}
            leaders |= {leader(session, before, commit.view)}.intersection(roster)
    return set(), False


def shows_absences(hard_state: HardState, view: int, absent_rounds: int) -> bool:
    """Return whether this peer's log shows the same absences as every other peer's log.

    This is the case if the log is long enough for `absent_peers`, or if no other log can reach further back: this log
    has ROUNDS_KEPT commits, or it begins with genesis, the only commit without participants.
    """
    history = [decided.commit for decided in hard_state.log]
    _, suffices = absent_peers(history, session=hard_state.session, view=view, absent_rounds=absent_rounds)
    return suffices or len(hard_state.log) == ROUNDS_KEPT or not hard_state.log[0].commit.participants
