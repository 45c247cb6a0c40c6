"""Where a run stands: inner steps are counted, rounds leave and land when they are due, what was missed is caught up.

    inner step  →  what others decided meanwhile lands  →  what is due leaves  →  what is due lands, or is here early

A round may be made ready while inner steps go on. Nothing else happens to a run meanwhile: before another one leaves,
before any lands, and before anybody looks at the state of the run, those that are leaving have left. Rounds that may
land early have one inner step to leave, so that all ranks of an island ask after them at the same time.

Peers may land a round after other inner steps: the slow weights that a message is about are those of after the round
before, which lands before the message leaves.

`inner_step` is where the run stands, not how many steps this peer took: who was away skips those of that time.
`waiting` are the training samples of this peer that no counted message stands for yet, by fragment.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import count

from outerloop.core.round import InFlight, PendingLaunch, RoundReport
from outerloop.core.step_clock import StepClock
from outerloop.protocols import Exchange, Schedule
from outerloop.types import Round


class RoundScheduler(ABC):
    """A subclass says what launching and landing are.

    Args:
        exchange, schedule: the axes.
        rounds: how many the run has; a peer that was away does not skip beyond the last. None: there is no last.
    """

    def __init__(self, *, exchange: Exchange, schedule: Schedule, rounds: int | None) -> None:
        self.exchange, self.schedule = exchange, schedule
        self.rounds = rounds
        self.step_clock = StepClock(schedule.step_s)
        self.inner_step = 0
        self.waiting = [0] * schedule.fragments
        self.in_flight: dict[Round, InFlight] = {}
        self.leaving: dict[Round, PendingLaunch] = {}
        self.announced = False

    @property
    def samples(self) -> int:
        """Training samples that no counted message stands for yet, of the fragment that has most of them."""
        return max(self.waiting)

    def samples_of(self, round: Round) -> int:
        """Training samples behind a round that leaves: since the last landing of its fragment, without those in flight.

        Two rounds of a fragment are in flight where one lands after the next has left (a delay of H).
        """
        others = sum(other.samples for other in self.in_flight.values() if other.round.fragment == round.fragment)
        return self.waiting[round.fragment] - others

    @property
    def last_launch(self) -> int | None:
        """The inner step after which the run's last round leaves, as far as that can be told now."""
        return None if self.rounds is None else self.schedule.inner_steps(self.rounds) - self.schedule.delay

    @property
    def next_round(self) -> Round:
        """The first round that leaves after the inner step at hand."""
        return next(round for step in count(self.inner_step + 1) for round in self.schedule.due(step).launch)

    @property
    def under_way(self) -> list[int]:
        """Numbers of the rounds in flight, and of the one that leaves next."""
        return [round.number for round in (*sorted(self.in_flight), self.next_round)]

    def before_update(self) -> float:
        """The weights of the model are about to change. Returns the seconds that this took.

        Who calls it before every change may set `announced`: a launch then reads them until they are about to change,
        and inner steps do not stand still for the copy.
        """
        began_s = time.perf_counter()
        for leaving in self.leaving.values():
            leaving.until(leaving.copied)
        return time.perf_counter() - began_s

    def go_on(self) -> Iterator[RoundReport]:
        """An inner step was taken: the run goes on by one, or by those that the clock has passed, none or several."""
        for _ in range(self.step_clock.passed()):
            self.inner_step += 1
            landed = False
            for report in self.advance():
                landed = True
                yield report
            if landed:
                self.step_clock.restart()
                break

    def go_on_from(self, round: Round) -> None:
        """As if this round had just been launched, and landed."""
        self.in_flight = {}
        self.inner_step = launch_step(self.schedule, round)
        self.step_clock.restart()

    def advance(self) -> Iterator[RoundReport]:
        """What is due after the inner step that was counted last, as it lands."""
        due = self.schedule.due(self.inner_step)
        if due.launch or due.land or self.schedule.early:
            self.settle()
        missed = set()
        for report in self.catch_up():
            missed.add(report.round)
            yield report
        if missed:
            due = self.schedule.due(self.inner_step)
        for round in (one for one in due.launch if one not in missed):  # it may have been decided since
            if self.exchange.decided(round):
                self.in_flight[round] = self.left_out(round)
            else:
                self.depart(round)
        if due.land:
            self.settle()
        yield from (self.land(round) for round in due.land if round in self.in_flight)
        early = sorted(self.in_flight) if self.schedule.early and not self.leaving else []
        yield from (self.land(round) for round in early if self.in_flight[round].pending.arrived())

    def catch_up(self) -> Iterator[RoundReport]:
        """Land what was decided while this peer was away; on to the step after which the round leaves that is open."""
        while missed := [r for r in self.schedule.due(self.inner_step).launch if self.exchange.decided(r)]:
            self.in_flight |= {round: self.left_out(round) for round in missed}
            yield from (self.land(round) for round in sorted(self.in_flight))
            if self.inner_step == self.last_launch:
                break
            self.inner_step = next(step for step in count(self.inner_step + 1) if self.schedule.due(step).launch)

    def settle(self) -> None:
        """What was leaving is in flight. Raises what went wrong there."""
        for round in list(self.leaving):
            self.in_flight[round] = self.leaving.pop(round).flight()

    @abstractmethod
    def depart(self, round: Round) -> None:
        """A round leaves: it is in flight now, or leaving."""

    @abstractmethod
    def left_out(self, round: Round) -> InFlight:
        """A round that was decided without a message of this peer."""

    @abstractmethod
    def land(self, round: Round) -> RoundReport:
        """A round of `in_flight` lands, or has failed; it is not in flight any more."""


def launch_step(schedule: Schedule, round: Round) -> int:
    """The inner step after which a round leaves."""
    last = schedule.inner_steps(round.number + 1)
    return next(step for step in range(last, -1, -1) if round in schedule.due(step).launch)
