"""Gossip rounds of a fleet, event by event: into the ready pool, a pair or a solo step, out again
(swarm/gossip/runner.py).

    launch    into the pool; 16 others, drawn anew, are told
    turn      now and then a ready peer proposes to one that it knows to be ready, not to its last partners
    tire      a quarter of the own inner time is over: anybody ready, else a solo step
    met       both payloads have gone over both links; landing = max(launch + τ steps, met) + codec

A peer is in one pair at a time, so a link carries one transfer each way and nobody shares it. Nothing here grows with
the number of peers but the number of events.
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
"""Of the inner time, and limits: exchange=swarm_gossip."""
TURN_S, TURNS, TOLD, REMEMBERED = 0.2, 8, 16, 3
"""swarm/timeouts.py, gossip.py, partner_policy.py."""
PEER_ROUNDS, FEWEST_ROUNDS, WARM_UP = 2000, 4, 2
"""Rounds of all peers together, and of each peer at least, that are simulated."""


@dataclass
class Seat:
    """One peer: its round at hand, and what it knows. `ready`: in the pool, in no pair; `seat` counts its rounds."""

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
    """All peers and the events to come: (time, order, kind, peer, its seat)."""

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
        """Until every peer has its rounds behind it."""
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
        """An event to come, void when the peer is in another round by then."""
        self.count += 1
        heapq.heappush(self.events, (at_s, self.count, kind, peer, self.seats[peer].seat))

    def compute(self, peer: int, now_s: float) -> None:
        """The inner steps until the next launch."""
        one = self.seats[peer]
        step_s = self.fleet.step_s * self.draw.lognormvariate(-(self.fleet.spread**2) / 2, self.fleet.spread)
        one.hidden_s = self.method.delay * step_s
        one.patience_s = min(max(PATIENCE * self.method.interval * step_s, LEAST_S), MOST_S)
        self.plan(now_s + (self.method.interval - self.method.delay) * step_s, "launch", peer)

    def launch(self, peer: int, now_s: float) -> None:
        """Into the pool; a run of one takes solo steps."""
        one = self.seats[peer]
        one.ready, one.launched_s, one.told = True, now_s, self.some(peer)
        for other in one.told:
            self.seats[other].known[peer] = now_s + self.fleet.links.latency_s
        self.plan(now_s + one.patience_s * bool(one.told), "tire", peer)
        self.next_turn(peer, now_s)

    def some(self, peer: int) -> list[int]:
        """Whom a peer tells: 16 others, or all."""
        others = self.fleet.peers - 1
        drawn = self.draw.sample(range(others), min(TOLD, others))
        return [other + (other >= peer) for other in drawn]

    def next_turn(self, peer: int, now_s: float) -> None:
        """At a random time of its own."""
        pause_s = min(TURN_S, self.seats[peer].patience_s / TURNS)
        self.plan(now_s + 2 * pause_s * self.draw.random(), "turn", peer)

    def turn(self, peer: int, now_s: float) -> None:
        """Propose to somebody whom it did not meet lately."""
        one = self.seats[peer]
        lately = list(one.recent)[len(one.recent) - self.remembered :]
        others = [other for other in self.around(peer, now_s) if other not in lately]
        if one.ready and not self.propose(peer, others, now_s):
            self.next_turn(peer, now_s)

    def tire(self, peer: int, now_s: float) -> None:
        """The last attempt, else a solo step."""
        if self.seats[peer].ready and not self.propose(peer, self.around(peer, now_s), now_s):
            self.solo += 1
            self.leave(peer)
            self.met(peer, now_s)

    def around(self, peer: int, now_s: float) -> list[int]:
        """Those that this peer has heard to be ready, and that still are."""
        known = self.seats[peer].known
        return [other for other, heard_s in known.items() if heard_s <= now_s and self.seats[other].ready]

    def propose(self, peer: int, others: list[int], now_s: float) -> bool:
        """A pair with one of these, if there is any."""
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
        """Out of the pool."""
        one = self.seats[peer]
        one.ready = False
        for other in one.told:
            self.seats[other].known.pop(peer, None)

    def met(self, peer: int, now_s: float) -> None:
        """Landing, and on to the next round."""
        one = self.seats[peer]
        landed_s = max(one.launched_s + one.hidden_s, now_s) + self.fleet.codec_s
        one.landings_s.append(landed_s)
        one.seat += 1
        if one.seat < self.rounds:
            self.compute(peer, landed_s)
