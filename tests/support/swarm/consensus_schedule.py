"""Seeded schedules of a world: some hundred steps of whatever can go wrong, then everything heals."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import permutations
from typing import Any, TypeVar

from outerloop.swarm.consensus.commit import majority, max_faulty
from outerloop.swarm.consensus.forks import fork_point
from outerloop.swarm.consensus.proposer import GatherPolicy
from outerloop.swarm.consensus.resignation import remaining_peers
from outerloop.swarm.consensus.state import HardState
from outerloop.swarm.consensus.votes import digests
from tests.support.swarm.consensus_liar import Liar, LiarWorld
from tests.support.swarm.consensus_world import World

STEPS = 200, 1200
ROUNDS_AFTER = 2  # commits that healing must bring
VIEWS = 60  # views that this may take: a view has a live leader with a probability above a half
DELIVERIES = 20_000


class Schedule:
    """One seed. `run` raises AssertionError when a property breaks."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        count = rng.randint(3, 7)
        names = [f"p{index}" for index in range(count)]
        members = names[: rng.randint(3, count)]
        self.world = self.world_of(
            members,
            names[len(members) :],
            gather_policy=GatherPolicy(
                min_peers=rng.randint(1, majority(tuple(members))), min_fraction=rng.choice([0.0, 0.5, 0.7, 1.0])
            ),
            absent_rounds=rng.randint(1, 3),
            rng=rng,
            as_bytes=seed % 20 == 0,
        )
        self.sides: dict[str, int] = dict.fromkeys(self.world.peers, 0)
        self.crashes = rng.choice([0.0, 0.01, 0.05])  # a crash within an event
        self.weights = {
            self.deliver: 30,
            self.drop: rng.choice([0, 1, 6]),
            self.duplicate: rng.choice([0, 3]),
            self.launch: rng.choice([3, 10]),
            self.spread: rng.choice([5, 15]),
            self.catch_up: 5,
            self.timer: rng.choice([1, 3]),
            self.timeout: rng.choice([0.3, 1, 3]),
            self.ask: 1,
            self.resign: rng.choice([0, 0, 0.3, 1]),
            self.crash: rng.choice([0, 0.3]),
            self.restart: 2,
            self.partition: rng.choice([0, 0.3]),
            self.heal: 0.5,
        }

    def world_of(self, members: list[str], outsiders: list[str], **options: Any) -> World:
        return World(members, outsiders, **options)

    def run(self) -> None:
        acts, weights = list(self.weights), list(self.weights.values())
        for act in self.rng.choices(acts, weights, k=self.rng.randint(*STEPS)):
            act()
        self.finish()

    # steps

    def deliver(self, *, keep: bool = False) -> None:
        open_ways = [
            index
            for index, (sender, to, _) in enumerate(self.world.network)
            if self.sides[sender] == self.sides[to] and self.world.peers[to].machine
        ]
        if open_ways:
            self.world.deliver(self.rng.choice(open_ways), keep=keep, crash_after=self.perhaps())

    def duplicate(self) -> None:
        self.deliver(keep=True)

    def drop(self) -> None:
        if self.world.network:
            self.world.network.pop(self.rng.randrange(len(self.world.network)))

    def launch(self) -> None:
        for name in self.some_up():
            self.world.launch(name)

    def spread(self) -> None:
        """A wanted payload, else any, moves from one that holds it to one that does not."""
        for name in self.some_up():
            held = self.world.peers[name].payloads
            near = [self.world.peers[other].payloads for other in self.reachable(name)]
            found = sorted(one for one in set().union(*near) - held if one[0] >= self.world[name].number)
            if found:
                self.world.give(name, *self.rng.choice(found), crash_after=self.perhaps())

    def catch_up(self) -> None:
        for waiting, act in ((self.world.fetches, self.world.fetch), (self.world.compares, self.world.compare)):
            if waiting:
                name, source = waiting.pop(self.rng.randrange(len(waiting)))
                if name in self.world.up and self.sides[source] == self.sides[name] and self.world.answers(source):
                    act(name, source)

    def timer(self) -> None:
        for name in self.some_up():
            if self.rng.random() < 0.5:
                self.world.event(name, lambda machine: machine.grace(machine.number), crash_after=self.perhaps())
            else:
                self.world.event(name, lambda machine: machine.deadline(machine.number), crash_after=self.perhaps())

    def timeout(self) -> None:
        for name in self.some_up():
            self.world.event(
                name, lambda machine: machine.timeout(machine.number, machine.view), crash_after=self.perhaps()
            )

    def ask(self) -> None:
        for name in self.some_up():
            self.world.event(name, lambda machine: machine.request_join())

    def resign(self) -> None:
        """A peer leaves: now, or once it has resigned, or never."""
        for name in self.some_up():
            self.world.event(name, lambda machine: machine.resign(), crash_after=self.perhaps())

    def crash(self) -> None:
        for name in self.some_up():
            self.world.crash(name)

    def restart(self) -> None:
        down = sorted(set(self.world.peers) - set(self.world.up))
        if down:
            self.world.start(self.rng.choice(down))

    def partition(self) -> None:
        self.sides = {name: self.rng.randrange(2) for name in self.sides}

    def heal(self) -> None:
        self.sides = dict.fromkeys(self.sides, 0)

    def some_up(self) -> list[str]:
        """One peer that is up, if any is."""
        return self.rng.sample(self.world.up, min(1, len(self.world.up)))

    def reachable(self, name: str) -> list[str]:
        return [other for other in self.world.up if self.sides[other] == self.sides[name]]

    def perhaps(self) -> int | None:
        """After how many outputs the peer shall crash, if at all."""
        return self.rng.randrange(6) if self.rng.random() < self.crashes else None

    # the end: nothing is lost any more, and a majority is up for good

    def finish(self) -> None:
        self.heal()
        for name in self.world.up:
            if self.world[name].leaving:
                self.world.crash(name)
        for name in list(self.world.peers):
            if name not in self.world.up and self.rng.random() < 0.5:
                self.world.start(name)
        self.bring_up_a_majority()
        if self.all_have_resigned():
            self.check_logs()
            return
        goal = max(self.world[name].number for name in self.world.up) + ROUNDS_AFTER
        delivered = 0
        for _ in range(VIEWS):
            delivered += self.one_view()
            if self.done(goal):
                break
        else:
            raise AssertionError(f"no progress in {VIEWS} views: {self.describe()}")
        assert delivered <= DELIVERIES, f"{delivered} deliveries"
        self.check_logs()

    def done(self, goal: int) -> bool:
        heads = {self.world[name].hard_state.head.digest for name in self.world.up}
        return len(heads) == 1 and self.world[self.world.up[0]].number >= goal

    def one_view(self) -> int:
        """All make and get every payload, the gather's timers fire; where that was not enough, the view's timers."""
        delivered = 0
        self.bring_up_a_majority()
        for act in ("grace", "deadline"):
            for name in self.world.up:
                self.world.launch(name)
                self.world.event(name, lambda machine: machine.request_join())
            delivered += self.world.deliver_all() + self.spread_all()
            for name in self.world.up:
                self.world.event(name, lambda machine, act=act: getattr(machine, act)(machine.number))
            delivered += self.world.deliver_all()
        for name in self.rng.sample(self.world.up, len(self.world.up)):
            self.world.event(name, lambda machine: machine.timeout(machine.number, machine.view))
        return delivered + self.world.deliver_all()

    def spread_all(self) -> int:
        every = set().union(*(self.world.peers[name].payloads for name in self.world.up))
        for name in self.world.up:
            for number, one in sorted(every - self.world.peers[name].payloads):
                if number >= self.world[name].number:
                    self.world.give(name, number, one)
        return self.world.deliver_all()

    def bring_up_a_majority(self) -> None:
        """Start peers until the newest round that is known to one who is up can be decided.

        Who has resigned and is up says so again; who has resigned and is down may be missed for ever.
        """
        while True:
            up = self.world.up or [self.rng.choice(list(self.world.peers))]
            if not self.world.up:
                self.world.start(up[0])
            newest = max((self.world[name].hard_state for name in up), key=lambda hard_state: hard_state.number)
            there = set(newest.roster) & set(up)
            gone = {peer for name in up for peer in self.world[name].hard_state.resigned} & set(newest.roster)
            voters = set(newest.roster) - gone
            enough = len(there) >= self.world.gather_policy.min_peers and len(voters & there) >= majority((*voters,))
            if enough or there == set(newest.roster):
                return
            self.world.start(self.rng.choice(sorted(set(newest.roster) - there)))

    def all_have_resigned(self) -> bool:
        """Several left at once, before any heard of another: nobody is left of the run, and it starts anew."""
        newest = max((self.world[name].hard_state for name in self.world.up), key=lambda hard_state: hard_state.number)
        return not any(self.world.peers[peer].disk.votes for peer in newest.roster)

    def check_logs(self) -> None:
        for peer in self.world.peers.values():
            for decided in peer.disk.log:
                assert decided.commit.digest == self.world.monitor.chosen[decided.commit.number].digest

    def describe(self) -> str:
        return (
            "; ".join(f"{name} {self.world[name].number}.{self.world[name].view}" for name in self.world.up)
            + f" of {self.world.monitor.chosen[max(self.world.monitor.chosen)].roster}"
        )


class LiarSchedule(Schedule):
    """One of three to five members lies from the beginning to the end, or two of five or seven. Nobody stops for good.

    `assumed`: whether what is promised of a run was asked of it: honest peers are a majority of the last roster, and
    liars that go on lying no more than (n - 1) // 3 of it. `ended`: what came of it.
    """

    world: LiarWorld

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.liar = Liar(self.world, self.rng)
        self.silent = self.rng.random() < 0.2
        self.ended = "not asked to go on"
        self.weights |= {self.lie: self.rng.choice([3, 10, 20])}
        if self.rng.random() < 0.7:
            self.weights |= {self.crash: 0, self.restart: 0}
            self.crashes = 0.0

    def world_of(self, members: list[str], outsiders: list[str], **options: Any) -> LiarWorld:
        count, lying = self.rng.choice([(3, 1), (4, 1), (4, 1), (4, 1), (5, 1), (5, 2), (7, 2)])
        members, outsiders = [f"p{index}" for index in range(count)], ["q"] if outsiders else []
        options["gather_policy"] = replace(
            options["gather_policy"], min_peers=self.rng.randint(1, majority(tuple(members)))
        )
        return LiarWorld(members, outsiders, liars=" ".join(self.rng.sample(members, lying)), **options)

    def lie(self) -> None:
        if not self.silent:
            self.liar.lie()

    @property
    def assumed(self) -> bool:
        newest = max((self.world[name].hard_state for name in self.world.up), key=lambda hard_state: hard_state.number)
        remaining = remaining_peers(newest.head, self.world.witness.resigned)
        honest, every = set(remaining).difference(self.world.liars), len(remaining)
        return len(honest) >= majority(remaining) and (self.silent or every - len(honest) <= max_faulty(remaining))

    def finish(self) -> None:
        """Whoever forked the chain says no more: it is expelled by what all know."""
        self.bring_up_a_majority()
        self.silent |= self.world.witness.forked
        if self.assumed:
            super().finish()
        self.world.check_guilt()

    def done(self, goal: int) -> bool:
        """Once the chain has forked: whether there is one again, or those on both do not hear of each other."""
        if not self.world.witness.forked:
            self.ended = "without a fork" if self.assumed else "too few are left"
            return not self.assumed or super().done(goal)
        self.silent = True
        logs = {name: self.world[name].hard_state for name in self.world.up}
        ways = {(one, other) for one, hard_state in logs.items() for other in hard_state.roster if other in logs}
        if any(fork_point(logs[one].log, logs[other].log) for one, other in ways):
            return False
        if any(digests_differ(logs[one], logs[other]) for one, other in permutations(logs, 2)):
            self.ended = "two chains"
            return True
        self.ended = "healed" if self.assumed else "healed, and too few are left"
        return not self.assumed or super().done(goal)

    def one_view(self) -> int:
        for _ in range(self.rng.randint(0, 4)):
            self.lie()
        return super().one_view()

    def bring_up_a_majority(self) -> None:
        """All honest peers are up."""
        for name in sorted(self.world.peers.keys() - set(self.world.up)):
            self.world.start(name)

    def check_logs(self) -> None:
        """What they hold is one chain."""
        assert self.ended != "without a fork" or len({self.world[name].hard_state.head for name in self.world.up}) == 1


def digests_differ(one: HardState, other: HardState) -> bool:
    """Whether two peers are on different chains."""
    known, told = digests(one.log), digests(other.log)
    return any(known[number] != told[number] for number in known.keys() & told.keys())


S = TypeVar("S", bound=Schedule)


def runs(kind: type[S], seeds: Iterable[int]) -> Iterator[S]:
    """Yield the schedule of each seed after its run; a failure names its seed."""
    for seed in seeds:
        schedule = kind(seed)
        try:
            schedule.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        yield schedule
