"""Pairing machines on a clock of events: work, notices and proposals that take their time, and who met whom."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from outerloop.swarm.gossip.pairing import Pairing, ProposePair, StayAlone
from outerloop.swarm.gossip.partner_policy import RandomPartners
from outerloop.types import Round

TURN_S = 0.2
TURNS = 8


class World:
    """`inner_s`: what the inner steps of each peer take, ± `jitter`; a pair's exchange takes `exchange_s`.

    `patience`: as a fraction of the inner time. `told`: how many others hear of a peer's readiness.
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
        told: int = 16,
    ) -> None:
        self.inner_s, self.patience, self.jitter, self.told = inner_s, patience, jitter, told
        self.delay_s, self.exchange_s = delay_s, exchange_s
        self.draw = random.Random(seed)
        self.names = [f"p{index}" for index in range(len(inner_s))]
        self.machines = {
            name: Pairing(
                name, RandomPartners([one for one in self.names if one != name]), draw=random.Random(f"{seed} {name}")
            )
            for name in self.names
        }
        self.now_s, self.events, self.count = 0.0, [], 0
        self.rounds = Counter(dict.fromkeys(self.names, 0))
        self.solo: Counter[str] = Counter()
        self.met: Counter[tuple[str, str]] = Counter()
        self.idle_s: Counter[str] = Counter()
        self.since_s = dict.fromkeys(self.names, 0.0)
        self.paired: dict[str, str] = {}
        self.hears: dict[str, list[str]] = {}
        for name in self.names:
            self.later(self.work_s(name), self.ready, name)

    def run(self, until_s: float) -> World:
        while self.events and self.events[0][0] < until_s:
            self.now_s, _, what, arguments = heapq.heappop(self.events)
            what(*arguments)
        return self

    def later(self, after_s: float, what: Callable[..., None], *arguments: Any) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.now_s + after_s, self.count, what, arguments))

    def work_s(self, name: str) -> float:
        inner_s = self.inner_s[self.names.index(name)]
        return inner_s * self.draw.uniform(1 - self.jitter, 1 + self.jitter)

    def message(self, what: Callable[..., None], *arguments: Any) -> None:
        self.later(self.draw.uniform(*self.delay_s), what, *arguments)

    def ready(self, name: str) -> None:
        round, machine = Round(self.rounds[name]), self.machines[name]
        self.since_s[name] = self.now_s
        patience_s = self.patience * self.inner_s[self.names.index(name)]
        others = [one for one in self.names if one != name]
        self.hears[name] = self.draw.sample(others, min(self.told, len(others)))
        self.tell(name, round)
        self.do(name, round, machine.ready(round))
        self.turn(name, round, min(TURN_S, patience_s / TURNS))
        self.later(patience_s, self.tire, name, round)

    def tell(self, name: str, round: Round | None) -> None:
        for other in self.hears[name]:
            self.message(self.machines[other].heard, name, round)

    def turn(self, name: str, round: Round, pause_s: float) -> None:
        if self.machines[name].round == round:
            self.do(name, round, self.machines[name].turn())
            self.later(self.draw.uniform(0, 2 * pause_s), self.turn, name, round, pause_s)

    def tire(self, name: str, round: Round) -> None:
        if self.machines[name].round == round:
            self.do(name, round, self.machines[name].tire())

    def do(self, name: str, round: Round, output: ProposePair | StayAlone | None) -> None:
        if isinstance(output, StayAlone):
            self.solo[name] += 1
            self.go_on(name, self.now_s)
        if isinstance(output, ProposePair):
            self.message(self.asked, output.to, name, round)

    def asked(self, name: str, proposer: str, round: Round) -> None:
        machine = self.machines[name]
        accepted = machine.asked(proposer, round)
        ready = machine.round is not None and name not in self.paired
        if accepted:
            assert name not in self.paired
            self.paired[name] = proposer
        self.message(self.answered, proposer, name, round, accepted, ready)

    def answered(self, name: str, acceptor: str, round: Round, accepted: bool, ready: bool) -> None:
        machine = self.machines[name]
        if not accepted:
            if machine.round == round:
                self.do(name, round, machine.turned_down(acceptor, ready=ready))
            return
        if machine.round == round and machine.agreed(acceptor):
            assert name not in self.paired and self.paired[acceptor] == name
            self.paired[name] = acceptor
            self.later(self.exchange_s, self.done, name, acceptor, self.now_s)
        else:
            self.message(self.broke, acceptor, name)

    def broke(self, name: str, proposer: str) -> None:
        assert self.paired.pop(name) == proposer
        self.do(name, self.machines[name].round or Round(0), self.machines[name].broke(proposer))

    def done(self, name: str, partner: str, paired_s: float) -> None:
        for one, other in ((name, partner), (partner, name)):
            assert self.paired.pop(one) == other
            self.met[one, other] += 1
            self.machines[one].met()
            self.go_on(one, paired_s)

    def go_on(self, name: str, idle_until_s: float) -> None:
        self.idle_s[name] += idle_until_s - self.since_s[name]
        self.rounds[name] += 1
        self.machines[name].leave()
        self.tell(name, None)
        self.later(self.work_s(name), self.ready, name)
