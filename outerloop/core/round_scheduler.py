"""Determine which rounds are due after an inner step, without changing anything.

    replays     rounds that the other peers decided without this peer: land them now, in order, then continue at the
                step after which the next round launches
    launches    rounds to launch now
    landings    rounds to land now, if they are in flight

Peers may land a round after different inner steps. Every message is computed from the slow weights after the previous
round, because a peer sends it only once that round has landed.

An inner step is a position in the run, not the number of steps that this peer took: a peer that was absent skips the
steps that the others took in the meantime.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from outerloop.protocols import Schedule
from outerloop.types import Round


@dataclass(frozen=True)
class DueWork:
    """The rounds to replay, launch and land after one inner step. Replays come first."""

    replays: Sequence[Round]
    launches: Sequence[Round]
    landings: Sequence[Round]


class RoundScheduler:
    """Determines which rounds of a run are due according to its schedule. It has no state.

    Args:
        schedule: determines when rounds launch and land.
        rounds: number of rounds in the run; None for no limit. A peer that was absent never skips past the last one.
        steps: number of inner steps in the run, which limits a peer that was absent in the same way; None for no limit.
            Not used if the schedule counts time-based steps.
    """

    def __init__(self, schedule: Schedule, *, rounds: int | None, steps: int | None = None) -> None:
        self.schedule, self.rounds = schedule, rounds
        self.steps = None if schedule.step_s else steps

    def is_idle(self, step: int) -> bool:
        """Return whether no round can launch or land after this step."""
        due = self.schedule.due(step)
        return not (due.launch or due.land or self.schedule.early)

    def due(self, step: int, decided: Callable[[Round], bool], replayed: Collection[Round] = ()) -> DueWork:
        """Return the rounds that are due after this step.

        Args:
            decided: returns whether the other peers have decided a round without this peer.
            replayed: rounds that were just replayed, and are therefore no longer due.
        """
        due = self.schedule.due(step)
        launches = [round for round in due.launch if round not in replayed]
        replays = [round for round in launches if decided(round)]
        return DueWork(replays, [round for round in launches if round not in replays], due.land)

    def next_round(self, step: int) -> Round:
        """Return the next round to launch later than inner step `step`."""
        return next_round(self.schedule, step)

    def step_after_replay(self, step: int) -> int:
        """Return the first step later than `step` after which a round launches.

        If the run ends before that step, return `step`.
        """
        if self.rounds is not None and step == self.schedule.inner_steps(self.rounds) - self.schedule.delay:
            return step
        next_launch = next(later for later in count(step + 1) if self.schedule.due(later).launch)
        return step if self.steps is not None and next_launch > self.steps else next_launch

    def launch_step(self, round: Round) -> int:
        """Return the inner step after which a round launches."""
        last = self.schedule.inner_steps(round.number + 1)
        return next(step for step in range(last, -1, -1) if round in self.schedule.due(step).launch)


def next_round(schedule: Schedule, step: int) -> Round:
    """Return the first round that launches after a later inner step than `step`."""
    return next(round for later in count(step + 1) for round in schedule.due(later).launch)


def first_round(schedule: Schedule, in_flight: Iterable[Mapping[str, Any]], step: int) -> Round:
    """Return the first round that is exchanged if a run resumes at inner step `step`.

    This is the first of the saved rounds in flight (core/round.py), or else the first that launches after a later step.
    """
    return min([*(Round(*flight["round"]) for flight in in_flight), next_round(schedule, step)])


class StepClock:
    """Counts the steps of a schedule: inner steps, or time-based steps that start when the first inner step ends.

    Args:
        step_s: duration of a time-based step, or 0 to count inner steps.
    """

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.since_s: float | None = None

    def passed(self) -> int:
        """Return the number of steps that have ended since the last call. Call this once after each inner step.

        Leftover time is carried over to the next call.
        """
        if not self.step_s:
            return 1
        if self.since_s is None:
            self.since_s = time.monotonic()
        steps = int((time.monotonic() - self.since_s) / self.step_s)
        self.since_s += steps * self.step_s
        return steps

    def put_back(self, steps: int) -> None:
        """Put back steps that `passed` returned, so that its next call returns them again."""
        assert self.since_s is not None, "the first call of `passed` has set it"
        self.since_s -= steps * self.step_s

    def restart(self) -> None:
        """Restart the clock. Call this when a round lands, which happens on all peers at about the same time."""
        self.since_s = time.monotonic()
