"""State machine that finds a partner for one peer in a gossip round. It uses no clock and no network.

    ready      The peer has finished its inner steps. It enters the pool and sends a notice to some of its possible
               partners.
    turn       At random times, a ready peer proposes to one peer, drawn uniformly from the preferred peers that it
               knows to be ready. It never proposes in response to a notice, so the order of notices does not
               influence the choice.
    asked      A ready peer that has not proposed to another peer accepts a proposal. If two peers propose to each
               other, the proposal of the peer with the smaller id stands, and the other one is turned down.
    time_out   The peer has waited long enough. It proposes once more, to any ready peer. If no peer is ready, it takes
               a solo step.
    ended      The peer's pair has ended (pair.py). If the pair counts, the peer leaves the pool; otherwise it looks for
               another partner. If an accepted pair does not count, its partner is excluded for some rounds.

A peer has at most one pair at a time. The pair begins with the peer's own proposal, or with its acceptance of another
peer's proposal. Until the pair ends, the peer turns down other proposals, and their senders try other peers. Outdated
knowledge of another peer costs at most one failed proposal.

Events are method calls. Some of these methods return the next action.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from outerloop.swarm.gossip.pair import Pair, PairState
from outerloop.swarm.gossip.partner_policy import Partners
from outerloop.swarm.strikes import LOSS, UNUSABLE, Strikes
from outerloop.types import Round

RECENT_ROUNDS = 4
"""A peer from which no notice has arrived during this many of this peer's rounds counts as gone, or as too slow."""


@dataclass(frozen=True)
class ProposePair:
    """Action: propose this pair to its partner."""

    pair: Pair


@dataclass(frozen=True)
class ApplyPair:
    """Action: take the outer step with the partner's payload. This peer has left the pool of ready peers."""

    pair: Pair


@dataclass(frozen=True)
class StayAlone:
    """Action: take a solo step, because no partner is available. This peer has left the pool of ready peers."""


class Pairing:
    """The pairing state of one peer across all its rounds.

    round      the round for which this peer is ready, or None if it is not in the pool
    pair       the pair that this peer has proposed or accepted, until the pair ends; None if this peer is free
    partners   the partner policy; may be set after construction, because notices arrive before the members are known
    """

    def __init__(self, peer: str, partners: Partners, *, draw: random.Random, new_token: Callable[[], bytes]) -> None:
        self.peer = peer
        self.partners = partners
        self.round: Round | None = None
        self.pair: Pair | None = None
        self._draw = draw
        self._new_token = new_token
        self._ready: dict[str, Round] = {}
        self._heard: dict[str, int] = {}  # peer -> the local round number when that peer's last notice arrived
        self._rounds = 0
        self._strikes = Strikes()  # in local round numbers
        self._timed_out = False

    @property
    def is_looking(self) -> bool:
        """Return whether this peer is in the pool without a partner. Its own proposal may still be unanswered."""
        return self.round is not None and (self.pair is None or self.pair.state is PairState.PROPOSED)

    def ready(self, round: Round) -> StayAlone | None:
        """Enter the pool, or return StayAlone if every possible partner for this round is excluded."""
        assert self.round is None, "one round at a time"
        self.round, self._timed_out = round, False
        self._rounds += 1
        return self._stay_alone() if all(map(self._is_excluded, self.partners.of(round))) else None

    def heard(self, peer: str, round: Round | None) -> None:
        """Handle a notice from `peer` that it is ready for `round`, or that it is not ready (None)."""
        self._heard[peer] = self._rounds
        if round is None:
            self._ready.pop(peer, None)
        else:
            self._ready[peer] = round

    def turn(self) -> ProposePair | None:
        """Propose to a preferred ready peer. Return None if there is none, or if this peer already has a pair."""
        around = sum(last > self._rounds - RECENT_ROUNDS for last in self._heard.values())
        return self._propose(self.partners.preferred(self._candidates(), around=around))

    def asked(self, peer: str, token: bytes, round: Round) -> Pair | None:
        """Handle a proposal from `peer`, which is in `round`. Return the accepted pair, or None to turn it down."""
        if not self._may_meet(peer, round) or not (self.pair is None or self._yields_to(peer)):
            return None
        self.pair = Pair.accepted_from(peer, token, round)
        return self.pair

    def accepted(self, pair: Pair, round: Round) -> bool:
        """Handle the acceptance of this peer's proposal. If it comes too late, turn the pair down and return False."""
        if self.pair is not pair:
            pair.turn_down(partner_ready=False)
            return False
        pair.accept(round)
        return True

    def time_out(self) -> ProposePair | StayAlone | None:
        """End this peer's wait: make one last proposal, or stay alone."""
        self._timed_out = True
        if self.round is None or self.pair is not None:
            return None
        return self._propose(sorted(self._candidates())) or self._stay_alone()

    def ended(self, pair: Pair) -> ApplyPair | StayAlone | None:
        """Handle the end of a pair. Return the final action if this ends the round, else None."""
        assert not pair.is_open, f"the pair with {pair.partner} is {pair.state.value}"
        if pair.state is PairState.APPLIED:
            return self._apply(pair)
        if pair.state is not PairState.TURNED_DOWN:
            self._strikes.add(pair.partner, LOSS, number=self._rounds)
        if not pair.partner_ready:
            self._ready.pop(pair.partner, None)
        if self.pair is not pair:
            return None
        self.pair = None
        return self._stay_alone() if self._timed_out else None

    def strike(self, peer: str) -> None:
        """Exclude a partner whose payload was unusable, for some rounds that include this one."""
        self._strikes.add(peer, UNUSABLE, number=self._rounds)

    def leave(self) -> None:
        """Leave the pool. Does nothing if this peer is not in it."""
        self.round = self.pair = None

    def _apply(self, pair: Pair) -> ApplyPair:
        assert self.pair is pair, "a peer applies the pair that it is in"
        self.partners.met(pair.partner)
        self._strikes.remove_one(pair.partner)
        self.leave()
        return ApplyPair(pair)

    def _stay_alone(self) -> StayAlone:
        assert self.pair is None, "a peer in a pair is not alone"
        self.leave()
        return StayAlone()

    def _propose(self, candidates: list[str]) -> ProposePair | None:
        if self.pair is not None or not candidates:
            return None
        self.pair = Pair.proposed_to(self._draw.choice(candidates), self._new_token())
        return ProposePair(self.pair)

    def _yields_to(self, peer: str) -> bool:
        """Return whether both peers have proposed to each other and the proposal of `peer` takes precedence."""
        pair = self.pair
        return pair is not None and pair.partner == peer and pair.state is PairState.PROPOSED and peer < self.peer

    def _candidates(self) -> list[str]:
        return [peer for peer, round in self._ready.items() if self._may_meet(peer, round)]

    def _may_meet(self, peer: str, round: Round) -> bool:
        own = self.round
        if own is None or self._is_excluded(peer):
            return False
        return self.partners.fit(own, round) and peer in self.partners.of(own)

    def _is_excluded(self, peer: str) -> bool:
        return self._strikes.excludes(peer, number=self._rounds)
