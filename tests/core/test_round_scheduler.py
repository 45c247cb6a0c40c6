"""What is due after an inner step: a function of the step, the schedule and what the others have decided."""

import pytest

from outerloop.core.round_scheduler import DueWork, RoundScheduler
from outerloop.schedule.every_h import EveryH
from outerloop.schedule.every_seconds import EverySeconds
from outerloop.schedule.streaming import Streaming
from outerloop.types import Round


def nothing_decided(round):
    return False


def scheduler_of(schedule, rounds=None, steps=None):
    return RoundScheduler(schedule, rounds=rounds, steps=steps)


def seconds(**options):
    return EverySeconds(seconds=60, **options)


def test_a_round_launches_after_h_steps_and_lands_after_the_delay():
    scheduler = scheduler_of(EveryH(sync_every=5, delay=2))
    work = {step: scheduler.due(step, nothing_decided) for step in range(1, 13)}
    assert {step: list(due.launches) for step, due in work.items() if due.launches} == {5: [Round(0)], 10: [Round(1)]}
    assert {step: list(due.landings) for step, due in work.items() if due.landings} == {7: [Round(0)], 12: [Round(1)]}
    assert not any(due.replays for due in work.values())


def test_a_round_that_the_others_decided_is_replayed_and_not_launched():
    scheduler = scheduler_of(Streaming(sync_every=2, fragments=2, delay=0))
    both = scheduler.due(2, {Round(0, 1)}.__contains__)
    assert both == DueWork(replays=[Round(0, 1)], launches=[], landings=(Round(0, 1),))
    assert scheduler.due(2, {Round(0, 1)}.__contains__, replayed=[Round(0, 1)]).replays == []


def test_asking_changes_nothing_and_asks_the_others_only_about_rounds_that_launch():
    scheduler, asked = scheduler_of(EveryH(sync_every=3, delay=1)), []
    answers = [scheduler.due(step, lambda round: bool(asked.append(round))) for step in (3, 3, 4, 5)]
    assert asked == [Round(0), Round(0)] and answers[0] == answers[1] and answers[3] == DueWork([], [], ())


@pytest.mark.parametrize("early", [False, True])
def test_idle_steps_are_those_between_launch_and_landing(early):
    """A round that may land early may land after any of them."""
    scheduler = scheduler_of(EveryH(sync_every=4, delay=2, early=early))
    assert [step for step in range(1, 9) if not scheduler.is_idle(step)] == ([*range(1, 9)] if early else [4, 6, 8])


@pytest.mark.parametrize(("rounds", "after"), [(None, 15), (3, 15), (2, 10)])
def test_a_replay_ends_where_the_next_round_launches_or_at_the_last_round_of_the_run(rounds, after):
    assert scheduler_of(EveryH(sync_every=5, delay=2), rounds).step_after_replay(10) == after


@pytest.mark.parametrize(("schedule", "steps", "after"), [(EveryH, 14, 10), (EveryH, 15, 15), (seconds, 14, 15)])
def test_a_replay_ends_within_the_inner_steps_of_the_run(schedule, steps, after):
    """Steps that are units of time are not those of the run."""
    assert scheduler_of(schedule(sync_every=5), steps=steps).step_after_replay(10) == after


def test_the_next_round_is_the_first_that_launches_later():
    scheduler = scheduler_of(Streaming(sync_every=6, fragments=2, delay=1))
    assert [scheduler.next_round(step) for step in (0, 2, 3, 6)] == [Round(0), Round(0), Round(0, 1), Round(1)]
