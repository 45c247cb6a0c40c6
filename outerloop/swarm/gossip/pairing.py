"""State machine that finds a partner for one peer in a gossip round. It uses no clock and no network.

    ready     The peer has finished its inner steps. It enters the pool and notifies some peers that it may meet.
    turn      At random times, a ready peer proposes to one peer, drawn uniformly from the preferred peers that it knows
              to be ready. It never proposes in response to a notice, so the order of notices decides nothing.
    asked     A ready peer that has not proposed to another peer accepts a proposal. If two peers propose to each other,
              the proposal of the smaller id stands and the other is turned down.
    tire      Patience is over: propose once more, to any ready peer. Without a ready peer, take a solo step.
    leave     The peer is done, in a pair or alone. It leaves the pool and notifies the peers that it notified before.

A peer is engaged to one peer at a time, starting when it proposes. It turns down proposals that arrive meanwhile, and
their senders try another peer. Knowledge of others may be out of date, which costs one failed proposal.

Events are method calls. Some of them return the next action.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from outerloop.swarm.gather.readmission import MOST_ROUNDS
from outerloop.swarm.gossip.partner_policy import Partners
from outerloop.types import Round

LATELY = 4
"""A peer that is silent for this many of this peer's rounds counts as gone, or as too slow to matter."""


@dataclass(frozen=True)
class ProposePair:
    """Action: propose a pair to this peer. The result is an event: `turned_down` or `agreed`, later perhaps `broke`."""

    to: str


@dataclass(frozen=True)
class StayAlone:
    """Action: no partner is available, take a solo step."""


class Pairing:
    """The pairing state of one peer, over all its rounds. `round`: the round it is ready with; None: not in the pool.

    `partners` may be set after construction, because notices arrive as soon as other peers know their partners.
    """

    def __init__(self, peer: str, partners: Partners, *, draw: random.Random) -> None:
        self.peer = peer
        self.partners = partners
        self.round: Round | None = None
        self._draw = draw
        self._ready: dict[str, Round] = {}
        self._heard: dict[str, int] = {}  # peer -> number of this peer's round in which its last notice arrived
        self._rounds = 0
        self._strikes: Counter[str] = Counter()
        self._shunned_until: dict[str, int] = {}  # peer -> number of this peer's round from which it may be met again
        self._engaged: str | None = None
        self._paired = False
        self._tired = False

    def ready(self, round: Round) -> StayAlone | None:
        """Enter the pool. Return StayAlone if every possible partner of this round is excluded."""
        assert self.round is None, "one round at a time"
        self.round, self._tired = round, False
        self._rounds += 1
        return StayAlone() if all(map(self._is_shunned, self.partners.of(round))) else None

    def heard(self, peer: str, round: Round | None) -> None:
        """Handle a notice: a peer is ready with this round, or (None) not ready."""
        self._heard[peer] = self._rounds
        if round is None:
            self._ready.pop(peer, None)
        else:
            self._ready[peer] = round

    def turn(self) -> ProposePair | None:
        """Propose to a ready peer, if there is one and this peer is not engaged."""
        around = sum(last > self._rounds - LATELY for last in self._heard.values())
        return self._propose(self.partners.preferred(self._candidates(), around=around))

    def asked(self, peer: str, round: Round) -> bool:
        """Handle a proposal. True: accepted, the two are paired until `met` or `broke`."""
        crossed = self._engaged == peer and not self._paired and peer < self.peer
        if not self._may_meet(peer, round) or not (self._engaged is None or crossed):
            return False
        self._engaged, self._paired = peer, True
        return True

    def agreed(self, peer: str) -> bool:
        """Handle the acceptance of this peer's proposal. False: too late, the engagement is over."""
        if self.round is None or self._engaged != peer or self._paired:
            return False
        self._paired = True
        return True

    def turned_down(self, peer: str, *, ready: bool) -> StayAlone | None:
        """Handle a failed proposal. `ready`: the other peer is still looking for a partner."""
        if not ready:
            self._ready.pop(peer, None)
        if self._engaged != peer or self._paired:
            return None
        return self._disengage()

    def broke(self, peer: str) -> StayAlone | None:
        """Handle the failure of the pair with this peer."""
        self._ready.pop(peer, None)
        return self._disengage() if self._engaged == peer else None

    def tire(self) -> ProposePair | StayAlone | None:
        """End the patience of this peer: make one last proposal, or stay alone."""
        self._tired = True
        if self.round is None or self._engaged is not None:
            return None
        return self._propose(sorted(self._candidates())) or StayAlone()

    def met(self) -> None:
        """Record that the pair counts for this peer."""
        assert self._engaged is not None and self._paired
        self.partners.met(self._engaged)
        self._strikes[self._engaged] = max(0, self._strikes[self._engaged] - 1)

    def strike(self, peer: str) -> None:
        """Exclude a partner whose payload was unusable, for 2^strikes of this peer's rounds, MOST_ROUNDS at most.

        Adds two strikes, because `met` has just removed one for this pair.
        """
        self._strikes[peer] += 2
        self._shunned_until[peer] = self._rounds + min(2 ** self._strikes[peer], MOST_ROUNDS)

    def leave(self) -> None:
        """Leave the pool: in a pair, alone, or because the round was given up."""
        self.round, self._engaged, self._paired = None, None, False

    def _candidates(self) -> list[str]:
        return [peer for peer, round in self._ready.items() if self._may_meet(peer, round)]

    def _may_meet(self, peer: str, round: Round) -> bool:
        own = self.round
        if own is None or self._is_shunned(peer):
            return False
        return self.partners.fit(own, round) and peer in self.partners.of(own)

    def _is_shunned(self, peer: str) -> bool:
        return self._rounds < self._shunned_until.get(peer, 0)

    def _propose(self, candidates: list[str]) -> ProposePair | None:
        if self._engaged is not None or not candidates:
            return None
        self._engaged = self._draw.choice(candidates)
        return ProposePair(self._engaged)

    def _disengage(self) -> StayAlone | None:
        self._engaged, self._paired = None, False
        return StayAlone() if self._tired and self.round is not None else None
