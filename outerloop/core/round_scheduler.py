"""Count inner steps, launch and land rounds when they are due, and catch up on rounds that were missed.

    inner step  →  land rounds that the others decided meanwhile  →  launch due rounds  →  land due or early rounds

A round may be prepared for launch in a thread while inner steps continue. Nothing else happens to the run meanwhile:
preparation is complete before another round is launched, before any round lands, and before the state of the run is
read. Rounds that may land early have one inner step to complete their preparation, so that all ranks of an island ask
for their result at the same time.

Peers may land a round after different inner steps. The slow weights that a message refers to are those after the
previous round, which lands before the message is sent.

`inner_step` is the position in the run, not the number of steps that this peer took: a peer that was away skips the
steps of that time. `waiting` holds, per fragment, the training samples of this peer that no counted message has covered
yet.
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
    """Decides when rounds launch and land; a subclass implements launching and landing.

    Args:
        exchange, schedule: the axes.
        rounds: number of rounds of the run; a peer that was away does not skip beyond the last. None: no limit.
    """

    def __init__(self, *, exchange: Exchange, schedule: Schedule, rounds: int | None) -> None:
        self.exchange, self.schedule = exchange, schedule
        self.rounds = rounds
        self.step_clock = StepClock(schedule.step_s)
        self.inner_step = 0
        self.waiting = [0] * schedule.fragments
        self.in_flight: dict[Round, InFlight] = {}
        self.pending_launches: dict[Round, PendingLaunch] = {}
        self.notifies_updates = False

    @property
    def samples(self) -> int:
        """Training samples that no counted message has covered yet, of the fragment that has most of them."""
        return max(self.waiting)

    def samples_of(self, round: Round) -> int:
        """Return the training samples behind a round that launches now.

        Counts those since the last landing of its fragment, without those of rounds in flight. Two rounds of a fragment
        are in flight if one lands after the next was launched (a delay of H).
        """
        others = sum(other.samples for other in self.in_flight.values() if other.round.fragment == round.fragment)
        return self.waiting[round.fragment] - others

    @property
    def last_launch(self) -> int | None:
        """The inner step after which the run's last round launches, as far as is known now."""
        return None if self.rounds is None else self.schedule.inner_steps(self.rounds) - self.schedule.delay

    @property
    def next_round(self) -> Round:
        """The first round that launches after the current inner step."""
        return next(round for step in count(self.inner_step + 1) for round in self.schedule.due(step).launch)

    @property
    def rounds_in_flight(self) -> list[int]:
        """Numbers of the rounds in flight, and of the round that launches next."""
        return [round.number for round in (*sorted(self.in_flight), self.next_round)]

    def before_update(self) -> float:
        """Wait until the weights of the model may change. Return the seconds that this took.

        A caller that calls this before every change may set `notifies_updates`. A launch then copies the weights in the
        background until they are about to change, and inner steps do not stop for the copy.
        """
        began_s = time.perf_counter()
        for leaving in self.pending_launches.values():
            leaving.until(leaving.copied)
        return time.perf_counter() - began_s

    def go_on(self) -> Iterator[RoundReport]:
        """Advance the run after an inner step, by one step or by those that the clock has passed (none or several)."""
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
        """Continue as if this round had just been launched and landed."""
        self.in_flight = {}
        self.inner_step = launch_step(self.schedule, round)
        self.step_clock.restart()

    def advance(self) -> Iterator[RoundReport]:
        """Launch and land what is due after the last counted inner step; yield each report as its round lands."""
        due = self.schedule.due(self.inner_step)
        if due.launch or due.land or self.schedule.early:
            self.wait_for_launches()
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
            self.wait_for_launches()
        yield from (self.land(round) for round in due.land if round in self.in_flight)
        early = sorted(self.in_flight) if self.schedule.early and not self.pending_launches else []
        yield from (self.land(round) for round in early if self.in_flight[round].pending.arrived())

    def catch_up(self) -> Iterator[RoundReport]:
        """Land the rounds that were decided while this peer was away, and advance to the first open round.

        The position is then the step after which that round launches.
        """
        while missed := [r for r in self.schedule.due(self.inner_step).launch if self.exchange.decided(r)]:
            self.in_flight |= {round: self.left_out(round) for round in missed}
            yield from (self.land(round) for round in sorted(self.in_flight))
            if self.inner_step == self.last_launch:
                break
            self.inner_step = next(step for step in count(self.inner_step + 1) if self.schedule.due(step).launch)

    def wait_for_launches(self) -> None:
        """Wait until all rounds being prepared are in flight. Raises what preparing them raised."""
        for round in list(self.pending_launches):
            self.in_flight[round] = self.pending_launches.pop(round).flight()

    @abstractmethod
    def depart(self, round: Round) -> None:
        """Launch a round: put it into `in_flight` now, or into `leaving` while it is prepared."""

    @abstractmethod
    def left_out(self, round: Round) -> InFlight:
        """Return a round in flight that was decided without a message of this peer."""

    @abstractmethod
    def land(self, round: Round) -> RoundReport:
        """Remove a round from `in_flight` and land it; return its report, which also describes a failure."""


def launch_step(schedule: Schedule, round: Round) -> int:
    """Return the inner step after which a round launches."""
    last = schedule.inner_steps(round.number + 1)
    return next(step for step in range(last, -1, -1) if round in schedule.due(step).launch)
