"""Which round leaves and lands after which step, and learning-rate factors."""

from functools import partial
from typing import get_args, get_type_hints

import pytest

from outerloop.config import build, instantiate, load
from outerloop.config.schema import Inner
from outerloop.inner.lr_schedule import SCHEDULES, warmup_cosine
from outerloop.schedule.every_h import EveryH
from outerloop.types import DueRounds, Round, UserError


def test_every_h_by_hand():
    schedule = EveryH(sync_every=3)
    dues = [schedule.due(step) for step in range(1, 7)]
    first, second = DueRounds([Round(0)], [Round(0)]), DueRounds([Round(1)], [Round(1)])
    assert [(list(d.launch), list(d.land)) for d in dues] == [
        ([], []), ([], []), (first.launch, first.land), ([], []), ([], []), (second.launch, second.land)
    ]  # fmt: skip
    assert schedule.inner_steps(5) == 15 and schedule.fragment(0, ["a", "b"]) == ["a", "b"]


def test_h_must_be_positive_and_a_delay_at_most_h():
    with pytest.raises(UserError, match="sync_every"):
        EveryH(sync_every=0)
    with pytest.raises(UserError, match=r"delay=5 must be between 0 and sync_every=4"):
        EveryH(sync_every=4, delay=5)


def test_warmup_cosine_by_hand():
    factor = lambda step: warmup_cosine(step, warmup_steps=4, total_steps=12, floor=0.1)  # noqa: E731
    assert [factor(step) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert factor(4) == 1.0 and factor(8) == pytest.approx(0.55)
    assert factor(12) == pytest.approx(0.1) and factor(99) == pytest.approx(0.1)


def test_the_other_decays_by_hand():
    linear, wsd = (partial(SCHEDULES[name], warmup_steps=4, total_steps=14, floor=0.1) for name in ("linear", "wsd"))
    assert [linear(step) for step in (0, 3, 4)] == [wsd(step) for step in (0, 3, 4)] == [0.25, 1.0, 1.0]
    assert linear(9) == pytest.approx(0.55) and linear(14) == linear(99) == pytest.approx(0.1)
    assert (
        wsd(11) == 1.0
        and wsd(12) == pytest.approx(1.0)
        and wsd(13) == pytest.approx(0.55)
        and wsd(14) == wsd(99) == pytest.approx(0.1)
    )


def test_every_decay_can_be_chosen_and_is_found_by_its_name():
    assert get_args(get_type_hints(Inner)["lr_schedule"]) == tuple(SCHEDULES)
    assert all(function.__name__ == f"warmup_{name}" for name, function in SCHEDULES.items())


@pytest.mark.parametrize("recipe", ["diloco", "ddp"])
def test_the_option_chooses_the_decay_of_the_inner_steps_or_of_data_parallel_training(recipe):
    config = load.load([f"recipe={recipe}", "rounds=10", "inner.lr_schedule=linear", "inner.warmup_steps=0"])
    if recipe == "ddp":
        factor = instantiate.make(config.method.lr_factor)
    else:
        factor = build.make_lr_factor(config, instantiate.make(config.schedule))
    steps = 10 * config.schedule.sync_every
    assert factor(steps // 2) == pytest.approx(0.55) and factor(steps) == pytest.approx(0.1)
