"""Seeded schedules of HotStuff-2 beside liars: some hundred steps of whatever can go wrong, then all is in time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outerloop.swarm.consensus.hotstuff.messages import COMMIT, Vote
from outerloop.swarm.consensus.messages import ViewChange
from outerloop.swarm.consensus.votes import CommitCertificate
from tests.support.swarm.consensus_schedule import Schedule
from tests.support.swarm.hotstuff_liar import HotStuffLiars
from tests.support.swarm.hotstuff_world import HotStuffMonitor, HotStuffWorld

SIZES = [(4, 1), (4, 1), (7, 2), (7, 2), (4, 0), (5, 1), (3, 0), (6, 1)]


class HotStuffSchedule(Schedule):
    """One seed: n peers of which f = (n - 1) // 3 lie to the end, even once messages arrive in time.

    `asked`: whether rounds had to continue at the end, because no roster had too many liars.
    """

    world: HotStuffWorld

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.liars = HotStuffLiars(self.world, self.rng)
        self.asked = False
        self.weights |= {
            self.lie: self.rng.choice([5, 20, 40]),
            self.waited: 3,
            self.lose: self.rng.choice([0, 20, 60]),
            self.change_view: self.rng.choice([0, 0.5, 2]),
        }

    @property
    def monitor(self) -> HotStuffMonitor:
        return self.world.monitor  # type: ignore[return-value]

    def world_of(self, members: list[str], outsiders: list[str], **options: Any) -> HotStuffWorld:
        count, lying = self.rng.choice(SIZES)
        members, outsiders = [f"p{index}" for index in range(count)], ["q"] if outsiders else []
        options["gather_policy"] = replace(options["gather_policy"], min_peers=self.rng.randint(1, count - lying))
        options["absent_rounds"] = self.rng.choice([2, 8, 8])
        return HotStuffWorld(members, outsiders, liars=" ".join(self.rng.sample(members, lying)), **options)

    def lie(self) -> None:
        self.liars.lie()

    def lose(self) -> None:
        """A commit vote or a decided commit on its way: peers lock, and nothing is decided."""
        late = [
            index
            for index, (_, _, message) in enumerate(self.world.network)
            if isinstance(message, CommitCertificate) or (isinstance(message, Vote) and message.phase == COMMIT)
        ]
        if late:
            self.world.network.pop(self.rng.choice(late))

    def change_view(self) -> None:
        """Most peers lose patience, and hear so of each other and of the liars."""
        for name in self.rng.sample(self.world.up, len(self.world.up)):
            if self.rng.random() < 0.9:
                self.world.event(name, lambda machine: machine.timeout(machine.number, machine.view))
        wishes = [one for one in self.world.network if isinstance(one[2], ViewChange)]
        for one in wishes:
            if one in self.world.network and self.rng.random() < 0.8:
                self.world.deliver(self.world.network.index(one))

    def waited(self) -> None:
        for name in self.some_up():
            self.world.event(
                name, lambda machine: machine.reports_over(machine.number, machine.view), crash_after=self.perhaps()
            )

    def restart(self) -> None:
        down = sorted(set(self.world.honest) - set(self.world.up))
        if down:
            self.world.start(self.rng.choice(down))

    def bring_up_a_majority(self) -> None:
        """All honest peers are up."""
        for name in sorted(set(self.world.honest) - set(self.world.up)):
            self.world.start(name)

    def finish(self) -> None:
        self.bring_up_a_majority()
        if self.monitor.tolerated:
            super().finish()

    def done(self, goal: int) -> bool:
        self.asked = self.monitor.tolerated
        return not self.asked or super().done(goal)

    def one_view(self) -> int:
        """As for Paxos, with the leaders' waits for reports after what was sent has arrived, and lies in between."""
        delivered = 0
        for _ in range(self.rng.randint(0, 4)):
            self.lie()
        delivered += self.world.deliver_all()
        for name in self.world.up:
            self.world.event(name, lambda machine: machine.reports_over(machine.number, machine.view))
        return delivered + super().one_view()

    def check_logs(self) -> None:
        if self.monitor.safe:
            super().check_logs()
