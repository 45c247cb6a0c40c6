"""Compose a new commit for the leader to propose, once the gather of a round closes.

A leader that need not repeat the proposal of an earlier view proposes this commit (paxos/, hotstuff/). Peers whose
payloads have arrived take part in this round; the others can take part in the next one. The gather closes by this rule:

    at any time            the payloads of all roster peers that may take part have arrived
    after the grace        at least min_peers payloads, and at least min_fraction times the size of the roster, have
    period                 arrived. `quorum` may require more payloads:
                               "majority"     those of more than half of the roster
                               "min_peers"    no more
                               "all"          those of all roster peers: a peer that is gone stops the run, unless it is
                                              expelled
    after the deadline     min_peers payloads have arrived; with "all", the payloads of all roster peers

The leader's own clock determines the grace period and the deadline. With fewer than min_peers payloads the gather never
closes. These rules concern payloads only: a majority of the roster always decides the commit.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from outerloop.swarm.consensus.commit import Commit, Participant, next_demoted
from outerloop.swarm.consensus.quorum import Quorum
from outerloop.swarm.consensus.roster_change import next_roster
from outerloop.swarm.consensus.round_state import RoundState
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.validation import MAX_PEERS


@dataclass(frozen=True)
class GatherPolicy:
    """Settings that decide when a gather closes (see the module docstring). `min_fraction`: of the roster, 0 to 1."""

    min_peers: int
    min_fraction: float
    quorum: Literal["majority", "all", "min_peers"] = "min_peers"

    def __post_init__(self) -> None:
        if self.min_peers < 1 or not 0 <= self.min_fraction <= 1:
            raise ValueError(f"min_peers must be 1 or more, and min_fraction 0 to 1; got {self}")

    def closes(self, stored: int, roster: int, *, awaited: int, grace: bool, deadline: bool) -> bool:
        """Return whether `stored` payloads are enough to close the gather now.

        `roster`: number of peers in the roster that have not resigned. `awaited`: number of roster peers whose payloads
        may be counted. `grace`, `deadline`: whether the grace period has ended and the deadline has passed.
        """
        return stored >= self.needed(roster, awaited=awaited, grace=grace, deadline=deadline)

    def needed(self, roster: int, *, awaited: int, grace: bool, deadline: bool) -> int:
        """Return the number of payloads needed to close the gather now, at least min_peers. It may exceed `roster`."""
        if self.quorum == "all" or not (grace or deadline):
            return max(self.min_peers, awaited)
        if deadline:
            return self.min_peers
        quorum = roster // 2 + 1 if self.quorum == "majority" else 0
        return max(self.min_peers, quorum, -int(-self.min_fraction * roster // 1))  # rounded up


def own_commit(
    hard_state: HardState,
    soft_state: RoundState,
    countable: Collection[Participant],
    *,
    awaited: Collection[str],
    gather_policy: GatherPolicy,
    absent_rounds: int,
    quorum: Quorum,
) -> Commit | None:
    """Return the commit that a leader proposes if its choice is free, or None until the gather of the round closes."""
    if not closes(hard_state, soft_state, countable, awaited=awaited, gather_policy=gather_policy):
        return None
    participants = candidates(hard_state, countable, soft_state.asked)
    roster = next_roster(
        [decided.commit for decided in hard_state.log],
        participants,
        session=hard_state.session,
        view=hard_state.promised,
        absent_rounds=absent_rounds,
        quorum=quorum,
        resigned=hard_state.resigned,
        min_peers=gather_policy.min_peers,
    )
    counted = {participant.peer for participant in participants}
    asks = tuple(sorted(ask_of_peer for ask_of_peer in soft_state.asks if ask_of_peer[0] in counted))
    demoted = next_demoted(hard_state.session, hard_state.head, hard_state.promised, roster)
    return Commit(hard_state.number, hard_state.head.digest, hard_state.promised, participants, roster, asks, demoted)


def closes(
    hard_state: HardState,
    soft_state: RoundState,
    stored: Collection[Participant],
    *,
    awaited: Collection[str],
    gather_policy: GatherPolicy,
) -> bool:
    """Return whether the stored payloads are enough to close the gather now.

    Only the payloads of roster peers count. Until the grace period ends, the gather also waits for peers outside the
    roster that asked to be counted. Without this wait, such a peer would never be counted if it is slightly slower.
    """
    voters = {participant.peer for participant in candidates(hard_state, stored)}
    grace, deadline = soft_state.grace, soft_state.deadline
    if soft_state.asked - {participant.peer for participant in stored} and not (grace or deadline):
        return False
    return gather_policy.closes(
        len(voters), len(hard_state.remaining), awaited=len(awaited), grace=grace, deadline=deadline
    )


def candidates(
    hard_state: HardState, stored: Collection[Participant], learners: Collection[str] = ()
) -> tuple[Participant, ...]:
    """Return one stored payload per roster peer and learner, sorted by peer, for at most MAX_PEERS peers."""
    by_peer = {participant.peer: participant for participant in sorted(stored)}
    peers = [peer for peer in dict.fromkeys([*hard_state.roster, *sorted(learners)]) if peer in by_peer]
    return tuple(by_peer[peer] for peer in sorted(peers[:MAX_PEERS]))
