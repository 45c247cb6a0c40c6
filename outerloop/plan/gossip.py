"""Simulate a fleet's gossip rounds event by event.

A peer enters the pool of ready peers, finds a partner or takes a solo step, and leaves the pool
(swarm/gossip/runner.py). The events are:

    launch    the peer enters the pool and notifies 16 randomly drawn peers
    turn      at random times, a ready peer proposes to a peer that it knows to be ready and that is not a recent
              partner
    tire      the peer's patience, a quarter of the time of its inner steps, has run out: it proposes to any ready peer,
              or takes a solo step if no peer is ready
    met       both peers of a pair have received the other's payload; landing = max(launch + τ steps, met) + codec

τ is the number of inner steps between launch and landing. codec is the duration of launching and landing. A peer is in
one pair at a time, so a link has at most one transfer in each direction.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass, field
from statistics import fmean

from outerloop.plan.gather import split_stall
from outerloop.plan.links import pair_s
from outerloop.plan.scenario import Fleet, Method, StepRate

PATIENCE_SHARE, MIN_PATIENCE_S, MAX_PATIENCE_S = 0.25, 1.0, 300.0
"""Patience as a fraction of the time of a round's inner steps, and its limits in seconds (defaults of
exchange=swarm_gossip).
"""
PROPOSAL_INTERVAL_S, PROPOSALS_PER_PATIENCE, NOTIFIED, RECENT_PARTNERS = 0.2, 8, 16, 3
"""Limits of one peer: maximum mean seconds between two proposals, minimum mean number of proposals within its patience,
number of peers that it notifies, and number of recent partners that it remembers.

The values are those of swarm/timeouts.py and swarm/gossip/.
"""
PEER_ROUNDS, MIN_ROUNDS, WARM_UP = 2000, 4, 2
"""Total number of simulated rounds over all peers, minimum number per peer, and warm-up rounds discarded per peer."""


@dataclass
class PeerState:
    """The state of one simulated peer.

    round: number of its current round.
    ready: whether it is in the pool of ready peers and not in a pair.
    notified: the peers that it has notified of its readiness.
    known_ready: peer that has notified it -> arrival time of that notification.
    """

    round: int = 0
    ready: bool = False
    launched_s: float = 0.0
    hidden_s: float = 0.0
    patience_s: float = 0.0
    notified: list[int] = field(default_factory=list)
    known_ready: dict[int, float] = field(default_factory=dict)
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_PARTNERS))
    landings_s: list[float] = field(default_factory=list)


class GossipSimulation:
    """A simulation of all peers. `events` is a heap of (time, sequence number, kind, peer, round of the peer)."""

    def __init__(self, fleet: Fleet, method: Method, *, seed: int = 0) -> None:
        self.fleet, self.method = fleet, method
        self.draw = random.Random(seed)
        self.rounds = WARM_UP + max(MIN_ROUNDS, PEER_ROUNDS // fleet.peers)
        self.pair_s = pair_s(fleet.links, method.payload_bytes)
        self.peers = [PeerState() for _ in range(fleet.peers)]
        self.events: list[tuple[float, int, str, int, int]] = []
        self.count = self.paired = self.solo = 0
        self.recent_count = min(RECENT_PARTNERS, (fleet.peers - 1) // 2)
        for peer in range(fleet.peers):
            self.start_round(peer, 0.0)

    def run(self) -> StepRate:
        """Process events until every peer has completed its rounds, and return the mean rate."""
        handlers = {"launch": self.launch, "turn": self.propose_to_ready, "tire": self.time_out, "met": self.land}
        while self.events:
            now_s, _, kind, peer, round_number = heapq.heappop(self.events)
            if round_number == self.peers[peer].round:
                handlers[kind](peer, now_s)
        spans = [(state.landings_s[-1] - state.landings_s[WARM_UP - 1]) for state in self.peers]
        round_s = fmean(spans) / (self.rounds - WARM_UP)
        met = self.paired / max(1, self.paired + self.solo)
        return split_stall(self.fleet, self.method, round_s, self.pair_s, steps=self.method.interval, met=met)

    def schedule(self, at_s: float, kind: str, peer: int) -> None:
        """Schedule an event of a peer's current round. The event is ignored if this round has ended by that time."""
        self.count += 1
        heapq.heappush(self.events, (at_s, self.count, kind, peer, self.peers[peer].round))

    def start_round(self, peer: int, now_s: float) -> None:
        """Draw the step time of the peer's next round, and schedule its launch."""
        state = self.peers[peer]
        step_s = self.fleet.step_s * self.draw.lognormvariate(-(self.fleet.spread**2) / 2, self.fleet.spread)
        state.hidden_s = self.method.delay * step_s
        state.patience_s = min(max(PATIENCE_SHARE * self.method.interval * step_s, MIN_PATIENCE_S), MAX_PATIENCE_S)
        self.schedule(now_s + (self.method.interval - self.method.delay) * step_s, "launch", peer)

    def launch(self, peer: int, now_s: float) -> None:
        """Add the peer to the ready pool and notify others. A peer that is alone takes a solo step immediately."""
        state = self.peers[peer]
        state.ready, state.launched_s, state.notified = True, now_s, self.draw_notified(peer)
        for other in state.notified:
            self.peers[other].known_ready[peer] = now_s + self.fleet.links.latency_s
        self.schedule(now_s + state.patience_s * bool(state.notified), "tire", peer)
        self.schedule_proposal(peer, now_s)

    def draw_notified(self, peer: int) -> list[int]:
        """Draw the peers to notify: 16 others, or all others if there are fewer."""
        others = self.fleet.peers - 1
        drawn = self.draw.sample(range(others), min(NOTIFIED, others))
        return [other + (other >= peer) for other in drawn]

    def schedule_proposal(self, peer: int, now_s: float) -> None:
        """Schedule the peer's next proposal at a random time."""
        pause_s = min(PROPOSAL_INTERVAL_S, self.peers[peer].patience_s / PROPOSALS_PER_PATIENCE)
        self.schedule(now_s + 2 * pause_s * self.draw.random(), "turn", peer)

    def propose_to_ready(self, peer: int, now_s: float) -> None:
        """Propose to a ready peer that is not a recent partner; if there is none, schedule another attempt."""
        state = self.peers[peer]
        recent = list(state.recent)[len(state.recent) - self.recent_count :]
        others = [other for other in self.known_ready_peers(peer, now_s) if other not in recent]
        if state.ready and not self.propose(peer, others, now_s):
            self.schedule_proposal(peer, now_s)

    def time_out(self, peer: int, now_s: float) -> None:
        """Handle the end of the peer's patience: propose to any ready peer, or take a solo step if there is none."""
        if self.peers[peer].ready and not self.propose(peer, self.known_ready_peers(peer, now_s), now_s):
            self.solo += 1
            self.leave_pool(peer)
            self.land(peer, now_s)

    def known_ready_peers(self, peer: int, now_s: float) -> list[int]:
        """Return the peers that are ready and whose notification has reached this peer."""
        known = self.peers[peer].known_ready
        return [other for other, heard_s in known.items() if heard_s <= now_s and self.peers[other].ready]

    def propose(self, peer: int, others: list[int], now_s: float) -> bool:
        """Pair the peer with a random peer from `others`, and return True. Return False if `others` is empty."""
        if not others:
            return False
        other = self.draw.choice(others)
        self.paired += 2
        for member, partner in ((peer, other), (other, peer)):
            self.leave_pool(member)
            self.peers[member].recent.append(partner)
            self.schedule(now_s + self.pair_s, "met", member)
        return True

    def leave_pool(self, peer: int) -> None:
        """Remove the peer from the pool, and from `known_ready` of the peers that it notified."""
        state = self.peers[peer]
        state.ready = False
        for other in state.notified:
            self.peers[other].known_ready.pop(peer, None)

    def land(self, peer: int, now_s: float) -> None:
        """Land the peer's round, and start its next round if it has any left."""
        state = self.peers[peer]
        landed_s = max(state.launched_s + state.hidden_s, now_s) + self.fleet.codec_s
        state.landings_s.append(landed_s)
        state.round += 1
        if state.round < self.rounds:
            self.start_round(peer, landed_s)
