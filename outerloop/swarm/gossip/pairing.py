"""Who meets whom in a gossip round, as a machine without clock or network.

    ready     a peer has finished its inner steps: it is in the pool, and tells so to some peers that it may meet
    turn      at random times of its own a ready peer proposes to one peer, drawn evenly from those that it knows to be
              ready and would rather meet. Never in answer to a notice: whose word came first decides nothing
    asked     a ready peer that has not proposed to another one accepts. Two that propose to each other: the proposal of
              the smaller id stands, the other one is turned down
    tire      patience is over: one last proposal, to anybody ready, else a solo step
    leave     paired and done with it, or alone: out of the pool, and whoever was told that it is in is told so

A peer is engaged to one peer at a time, from proposing on; a proposal that comes meanwhile is turned down, and the
other one turns to somebody else. What is known of others may be out of date: that costs one proposal in vain.

Events go in as method calls; some return what shall be done next.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from outerloop.swarm.gather.readmission import MOST_ROUNDS
from outerloop.swarm.gossip.partner_policy import Partners
from outerloop.types import Round

LATELY = 4
"""Own rounds after which a silent peer counts as gone, or as so slow that it may as well."""


@dataclass(frozen=True)
class ProposePair:
    """Propose a pair to this peer. What comes of it is an event: `turned_down`, `agreed`, later `broke`."""

    to: str


@dataclass(frozen=True)
class StayAlone:
    """There is nobody to meet: take a solo step."""


class Pairing:
    """One peer's part, one round after another. `round`: the one it is ready with; None: not in the pool.

    `partners` may be set later than construction: notices come as soon as others know their partners.
    """

    def __init__(self, peer: str, partners: Partners, *, draw: random.Random) -> None:
        self.peer = peer
        self.partners = partners
        self.round: Round | None = None
        self._draw = draw
        self._ready: dict[str, Round] = {}
        self._heard: dict[str, int] = {}  # peer -> in which of the own rounds it was heard last
        self._rounds = 0
        self._strikes: Counter[str] = Counter()
        self._shunned_until: dict[str, int] = {}  # peer -> the own round from which on it may be met again
        self._engaged: str | None = None
        self._paired = False
        self._tired = False

    def ready(self, round: Round) -> StayAlone | None:
        """This peer enters the pool, unless it meets nobody that it could have a pair with in this round."""
        assert self.round is None, "one round at a time"
        self.round, self._tired = round, False
        self._rounds += 1
        return StayAlone() if all(map(self._is_shunned, self.partners.of(round))) else None

    def heard(self, peer: str, round: Round | None) -> None:
        """A peer says that it is ready with this round, or (None) that it is not."""
        self._heard[peer] = self._rounds
        if round is None:
            self._ready.pop(peer, None)
        else:
            self._ready[peer] = round

    def turn(self) -> ProposePair | None:
        """A moment has come to propose."""
        around = sum(last > self._rounds - LATELY for last in self._heard.values())
        return self._propose(self.partners.preferred(self._candidates(), around=around))

    def asked(self, peer: str, round: Round) -> bool:
        """A peer proposes a pair. True: accepted, the two are paired until `met` or `broke`."""
        crossed = self._engaged == peer and not self._paired and peer < self.peer
        if not self._may_meet(peer, round) or not (self._engaged is None or crossed):
            return False
        self._engaged, self._paired = peer, True
        return True

    def agreed(self, peer: str) -> bool:
        """A peer accepts the proposal. False: too late, this peer has turned away meanwhile."""
        if self.round is None or self._engaged != peer or self._paired:
            return False
        self._paired = True
        return True

    def turned_down(self, peer: str, *, ready: bool) -> StayAlone | None:
        """The proposal to a peer came to nothing. `ready`: it is still looking for a partner."""
        if not ready:
            self._ready.pop(peer, None)
        if self._engaged != peer or self._paired:
            return None
        return self._disengage()

    def broke(self, peer: str) -> StayAlone | None:
        """The pair with this peer came to nothing."""
        self._ready.pop(peer, None)
        return self._disengage() if self._engaged == peer else None

    def tire(self) -> ProposePair | StayAlone | None:
        """Patience is over."""
        self._tired = True
        if self.round is None or self._engaged is not None:
            return None
        return self._propose(sorted(self._candidates())) or StayAlone()

    def met(self) -> None:
        """The pair is done on this side."""
        assert self._engaged is not None and self._paired
        self.partners.met(self._engaged)
        self._strikes[self._engaged] = max(0, self._strikes[self._engaged] - 1)

    def strike(self, peer: str) -> None:
        """What a partner sent cannot be used: excluded for 2^strikes of this peer's rounds, MOST_ROUNDS at most.

        Adds two, because `met` has just taken one off for this pair.
        """
        self._strikes[peer] += 2
        self._shunned_until[peer] = self._rounds + min(2 ** self._strikes[peer], MOST_ROUNDS)

    def leave(self) -> None:
        """This peer leaves the pool, in a pair, alone, or because the round was given up."""
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
