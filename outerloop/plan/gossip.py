"""Simulate the gossip rounds of a fleet event by event: a peer enters the ready pool, finds a partner or takes a solo
step, and leaves the pool (swarm/gossip/runner.py).

    launch    the peer enters the pool and notifies 16 randomly drawn peers
    turn      at random times a ready peer proposes to a peer known to be ready that is not a recent partner
    tire      a quarter of the peer's inner time is over: it proposes to any ready peer, else takes a solo step
    met       both payloads have been sent over both links; landing = max(launch + τ steps, met) + codec

A peer is in one pair at a time, so a link carries one transfer each way and transfers never share it. Only the number
of events grows with the number of peers.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass, field
from statistics import fmean

from outerloop.plan.gather import pace_of
from outerloop.plan.links import pair_s
from outerloop.plan.scenario import Fleet, Method, StepRate

PATIENCE, LEAST_S, MOST_S = 0.25, 1.0, 300.0
"""Share of the inner time that a peer stays in the pool, and limits in seconds: exchange=swarm_gossip."""
TURN_S, TURNS, TOLD, REMEMBERED = 0.2, 8, 16, 3
"""Seconds between proposals, proposals per patience, peers notified, recent partners that are remembered.

From swarm/timeouts.py, gossip.py, partner_policy.py.
"""
PEER_ROUNDS, FEWEST_ROUNDS, WARM_UP = 2000, 4, 2
"""Simulated rounds: of all peers together, at least of each peer, and discarded as warm-up."""


@dataclass
class Seat:
    """The state of one peer. `seat`: its current round. `ready`: in the pool and not in a pair.

    `told`: peers that it notified. `known`: peer that it knows to be ready -> when the notification arrives.
    """

    seat: int = 0
    ready: bool = False
    launched_s: float = 0.0
    hidden_s: float = 0.0
    patience_s: float = 0.0
    told: list[int] = field(default_factory=list)
    known: dict[int, float] = field(default_factory=dict)
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    landings_s: list[float] = field(default_factory=list)


class Pool:
    """All peers, and a heap of future events: (time, order, kind, peer, round of the peer)."""

    def __init__(self, fleet: Fleet, method: Method, *, seed: int = 0) -> None:
        self.fleet, self.method = fleet, method
        self.draw = random.Random(seed)
        self.rounds = WARM_UP + max(FEWEST_ROUNDS, PEER_ROUNDS // fleet.peers)
        self.pair_s = pair_s(fleet.links, method.payload_bytes)
        self.seats = [Seat() for _ in range(fleet.peers)]
        self.events: list[tuple[float, int, str, int, int]] = []
        self.count = self.paired = self.solo = 0
        self.remembered = min(REMEMBERED, (fleet.peers - 1) // 2)
        for peer in range(fleet.peers):
            self.compute(peer, 0.0)

    def run(self) -> StepRate:
        """Process events until every peer has completed its rounds, and return the mean rate."""
        happens = {"launch": self.launch, "turn": self.turn, "tire": self.tire, "met": self.met}
        while self.events:
            now_s, _, kind, peer, seat = heapq.heappop(self.events)
            if seat == self.seats[peer].seat:
                happens[kind](peer, now_s)
        spans = [(one.landings_s[-1] - one.landings_s[WARM_UP - 1]) for one in self.seats]
        round_s = fmean(spans) / (self.rounds - WARM_UP)
        met = self.paired / max(1, self.paired + self.solo)
        return pace_of(self.fleet, self.method, round_s, self.pair_s, met=met)

    def plan(self, at_s: float, kind: str, peer: int) -> None:
        """Schedule an event. It is ignored if the peer is in another round when it is due."""
        self.count += 1
        heapq.heappush(self.events, (at_s, self.count, kind, peer, self.seats[peer].seat))

    def compute(self, peer: int, now_s: float) -> None:
        """Draw the step time of the peer's next round, and schedule its launch."""
        one = self.seats[peer]
        step_s = self.fleet.step_s * self.draw.lognormvariate(-(self.fleet.spread**2) / 2, self.fleet.spread)
        one.hidden_s = self.method.delay * step_s
        one.patience_s = min(max(PATIENCE * self.method.interval * step_s, LEAST_S), MOST_S)
        self.plan(now_s + (self.method.interval - self.method.delay) * step_s, "launch", peer)

    def launch(self, peer: int, now_s: float) -> None:
        """Put the peer into the pool and notify others. The only peer of a run takes a solo step at once."""
        one = self.seats[peer]
        one.ready, one.launched_s, one.told = True, now_s, self.some(peer)
        for other in one.told:
            self.seats[other].known[peer] = now_s + self.fleet.links.latency_s
        self.plan(now_s + one.patience_s * bool(one.told), "tire", peer)
        self.next_turn(peer, now_s)

    def some(self, peer: int) -> list[int]:
        """Draw the peers to notify: 16 others, or all others if there are fewer."""
        others = self.fleet.peers - 1
        drawn = self.draw.sample(range(others), min(TOLD, others))
        return [other + (other >= peer) for other in drawn]

    def next_turn(self, peer: int, now_s: float) -> None:
        """Schedule the peer's next proposal at a random time."""
        pause_s = min(TURN_S, self.seats[peer].patience_s / TURNS)
        self.plan(now_s + 2 * pause_s * self.draw.random(), "turn", peer)

    def turn(self, peer: int, now_s: float) -> None:
        """Propose to a ready peer that is not a recent partner; if there is none, schedule another attempt."""
        one = self.seats[peer]
        lately = list(one.recent)[len(one.recent) - self.remembered :]
        others = [other for other in self.around(peer, now_s) if other not in lately]
        if one.ready and not self.propose(peer, others, now_s):
            self.next_turn(peer, now_s)

    def tire(self, peer: int, now_s: float) -> None:
        """Propose to any ready peer; if there is none, take a solo step."""
        if self.seats[peer].ready and not self.propose(peer, self.around(peer, now_s), now_s):
            self.solo += 1
            self.leave(peer)
            self.met(peer, now_s)

    def around(self, peer: int, now_s: float) -> list[int]:
        """Return the peers that have notified this peer that they are ready, and that still are."""
        known = self.seats[peer].known
        return [other for other, heard_s in known.items() if heard_s <= now_s and self.seats[other].ready]

    def propose(self, peer: int, others: list[int], now_s: float) -> bool:
        """Pair the peer with a random one of `others`. Return False if there are none."""
        if not others:
            return False
        other = self.draw.choice(others)
        self.paired += 2
        for one, partner in ((peer, other), (other, peer)):
            self.leave(one)
            self.seats[one].recent.append(partner)
            self.plan(now_s + self.pair_s, "met", one)
        return True

    def leave(self, peer: int) -> None:
        """Take the peer out of the pool, and out of the knowledge of the peers it notified."""
        one = self.seats[peer]
        one.ready = False
        for other in one.told:
            self.seats[other].known.pop(peer, None)

    def met(self, peer: int, now_s: float) -> None:
        """Land the round of the peer, and start its next round if it has any left."""
        one = self.seats[peer]
        landed_s = max(one.launched_s + one.hidden_s, now_s) + self.fleet.codec_s
        one.landings_s.append(landed_s)
        one.seat += 1
        if one.seat < self.rounds:
            self.compute(peer, landed_s)
