"""Pairing machines on a clock of events: work, notices and the messages of pairs take their time and may be lost."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from outerloop.swarm.gossip.pair import Decisions, Pair, PairState
from outerloop.swarm.gossip.pairing import ApplyPair, Pairing, ProposePair, StayAlone
from outerloop.swarm.gossip.partner_policy import RandomPartners
from outerloop.types import Round

TURN_S = 0.2
TURNS = 8


@dataclass
class Side:
    """A pair as one of its two peers sees it. `number`: number of that peer's round."""

    peer: str
    pair: Pair
    number: int


class World:
    """`inner_s`: what the inner steps of each peer take, ± `jitter`; a pair's exchange takes `exchange_s`.

    patience      as a fraction of the inner time
    notified      number of other peers that are notified of a peer's readiness
    loss          chance that the stream of a pair breaks with a message, which may or may not arrive
    unreachable   chance that an acceptor that is asked for its decision cannot be reached
    """

    def __init__(
        self,
        inner_s: list[float],
        *,
        seed: int,
        patience: float = 0.25,
        jitter: float = 0.1,
        delay_s: tuple[float, float] = (0.01, 0.1),
        exchange_s: float = 1.0,
        notified: int = 16,
        loss: float = 0.0,
        unreachable: float = 0.0,
    ) -> None:
        self.inner_s, self.patience, self.jitter, self.notified = inner_s, patience, jitter, notified
        self.delay_s, self.exchange_s, self.loss, self.unreachable = delay_s, exchange_s, loss, unreachable
        self.draw = random.Random(seed)
        self.names = [f"p{index}" for index in range(len(inner_s))]
        self.machines = {name: self.machine(name, seed) for name in self.names}
        self.decisions = {name: Decisions() for name in self.names}
        self.now_s, self.events, self.count = 0.0, [], 0
        self.rounds = Counter(dict.fromkeys(self.names, 0))
        self.solo: Counter[str] = Counter()
        self.met: Counter[tuple[str, str]] = Counter()
        self.idle_s: Counter[str] = Counter()
        self.since_s = dict.fromkeys(self.names, 0.0)
        self.paired_s = dict.fromkeys(self.names, 0.0)
        self.hears: dict[str, list[str]] = {}
        self.pairs: dict[str, Pair] = {}  # peer -> the last pair that it took part in
        self.proposed: dict[bytes, Side] = {}  # by token
        self.accepted: dict[bytes, Side] = {}
        self.broken: set[bytes] = set()
        for name in self.names:
            self.later(self.work_s(name), self.ready, name)

    def machine(self, name: str, seed: int) -> Pairing:
        others = RandomPartners([other for other in self.names if other != name])
        tokens = random.Random(f"tokens {seed} {name}")
        return Pairing(name, others, draw=random.Random(f"{seed} {name}"), new_token=lambda: tokens.randbytes(8))

    def run(self, until_s: float) -> World:
        while self.events[0][0] < until_s:
            self.happen()
        return self

    def finish(self) -> World:
        """End the rounds that are under way, and begin no others."""
        self.work_s = lambda name: float("inf")  # type: ignore[method-assign]
        self.events = [event for event in self.events if event[2] != self.ready]
        heapq.heapify(self.events)
        while self.events and self.events[0][0] < float("inf"):
            self.happen()
        return self

    def happen(self) -> None:
        self.now_s, _, what, arguments = heapq.heappop(self.events)
        what(*arguments)

    def outcomes(self) -> Counter[tuple[PairState, PairState | None]]:
        """Count how pairs ended, (proposer, acceptor); None: the acceptor does not know of the pair."""
        accepted = {token: side.pair.state for token, side in self.accepted.items()}
        return Counter((side.pair.state, accepted.get(token)) for token, side in self.proposed.items())

    def later(self, after_s: float, what: Callable[..., None], *arguments: Any) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.now_s + after_s, self.count, what, arguments))

    def work_s(self, name: str) -> float:
        inner_s = self.inner_s[self.names.index(name)]
        return inner_s * self.draw.uniform(1 - self.jitter, 1 + self.jitter)

    def message(self, what: Callable[..., None], *arguments: Any) -> None:
        self.later(self.draw.uniform(*self.delay_s), what, *arguments)

    def send(self, token: bytes, what: Callable[..., None], *arguments: Any) -> None:
        """Send a message on the stream of a pair, which may break."""
        was_broken = token in self.broken
        breaks = self.loss > 0 and self.draw.random() < self.loss
        if not was_broken and (not breaks or self.draw.random() < 0.5):
            self.message(what, token, *arguments)
        if was_broken or breaks:
            self.broken.add(token)
            self.message(self.proposer_broken, token)
            self.message(self.acceptor_broken, token)

    # One round of one peer

    def ready(self, name: str) -> None:
        round, machine = Round(self.rounds[name]), self.machines[name]
        self.since_s[name] = self.now_s
        patience_s = self.patience * self.inner_s[self.names.index(name)]
        others = [other for other in self.names if other != name]
        self.hears[name] = self.draw.sample(others, min(self.notified, len(others)))
        self.notify(name, round)
        self.do(name, machine.ready(round))
        self.turn(name, round, min(TURN_S, patience_s / TURNS))
        self.later(patience_s, self.time_out, name, round)

    def notify(self, name: str, round: Round | None) -> None:
        for other in self.hears[name]:
            self.message(self.machines[other].heard, name, round)

    def turn(self, name: str, round: Round, pause_s: float) -> None:
        if self.machines[name].round == round:
            self.do(name, self.machines[name].turn())
            self.later(self.draw.uniform(0, 2 * pause_s), self.turn, name, round, pause_s)

    def time_out(self, name: str, round: Round) -> None:
        if self.machines[name].round == round:
            self.do(name, self.machines[name].time_out())

    def do(self, name: str, action: ProposePair | ApplyPair | StayAlone | None) -> None:
        match action:
            case ProposePair(pair):
                self.proposed[pair.token] = Side(name, pair, self.rounds[name])
                self.send(pair.token, self.asked, self.machines[name].round)
            case ApplyPair(pair):
                self.met[name, pair.partner] += 1
                self.go_on(name, self.paired_s[name])
            case StayAlone():
                self.solo[name] += 1
                self.go_on(name, self.now_s)

    def go_on(self, name: str, idle_until_s: float) -> None:
        self.idle_s[name] += idle_until_s - self.since_s[name]
        self.rounds[name] += 1
        self.notify(name, None)
        self.later(self.work_s(name), self.ready, name)

    # One pair

    def asked(self, token: bytes, round: Round) -> None:
        proposer = self.proposed[token]
        name = proposer.pair.partner
        machine = self.machines[name]
        pair = machine.asked(proposer.peer, token, round)
        if pair is not None:
            self.accepted[token] = Side(name, pair, self.rounds[name])
            self.take_part(name, pair)
        self.send(token, self.answered, pair and machine.round, machine.is_looking)

    def answered(self, token: bytes, round: Round | None, looking: bool) -> None:
        side = self.proposed[token]
        if not side.pair.is_open:
            return
        if round is None:
            side.pair.turn_down(partner_ready=looking)
            self.end(side)
        elif self.machines[side.peer].accepted(side.pair, round):
            self.take_part(side.peer, side.pair)
            self.later(self.exchange_s, self.fetched, token)
        else:
            self.end(side)
            self.message(self.acceptor_broken, token)

    def take_part(self, name: str, pair: Pair) -> None:
        """Begin the one pair of a peer: it is in no other that is open."""
        assert name not in self.pairs or not self.pairs[name].is_open
        self.pairs[name], self.paired_s[name] = pair, self.now_s

    def fetched(self, token: bytes) -> None:
        pair = self.proposed[token].pair
        if pair.is_open:
            pair.bind(b"acceptor's")
            self.send(token, self.confirmed)

    def confirmed(self, token: bytes) -> None:
        side = self.accepted[token]
        if side.pair.is_open:
            applied = self.decisions[side.peer].decide(side.pair.partner, token, applied=True)
            side.pair.decide(b"proposer's", applied=applied)
            self.end(side)
            self.send(token, self.decided, applied)

    def decided(self, token: bytes, applied: bool) -> None:
        side = self.proposed[token]
        if side.pair.is_open:
            side.pair.learn(applied=applied)
            self.end(side)

    def acceptor_broken(self, token: bytes) -> None:
        if token in self.accepted:
            self.lose(self.accepted[token])

    def proposer_broken(self, token: bytes) -> None:
        side = self.proposed[token]
        if side.pair.state is PairState.BOUND and self.draw.random() >= self.unreachable:
            self.message(self.asked_for_decision, token)
        else:
            self.lose(side)

    def asked_for_decision(self, token: bytes) -> None:
        proposer = self.proposed[token]
        applied = self.decisions[proposer.pair.partner].decide(proposer.peer, token, applied=False)
        self.message(self.decided, token, applied)

    def lose(self, side: Side) -> None:
        if side.pair.is_open:
            side.pair.lose()
            self.end(side)

    def end(self, side: Side) -> None:
        if self.rounds[side.peer] == side.number:
            self.do(side.peer, self.machines[side.peer].ended(side.pair))
