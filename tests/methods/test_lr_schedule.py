"""The factor of the outer learning rate, against values computed by hand."""

from __future__ import annotations

import pytest

from outerloop.config import instantiate, load
from outerloop.methods.lr_schedule import ConstantThenLinear
from outerloop.types import UserError


@pytest.mark.parametrize(("round", "factor"), [(0, 1.0), (4, 1.0), (6, 0.75), (8, 0.5), (1000, 0.5)])
def test_it_is_constant_then_falls_to_the_floor_and_stays_there(round, factor):
    assert ConstantThenLinear(constant_rounds=4, end_round=8, floor=0.5)(round) == factor


@pytest.mark.parametrize(
    ("setting", "named"),
    [({"constant_rounds": 8}, "below method.lr_factor.end_round=8"), ({"floor": 1.5}, r"must be 0 \.\. 1")],
)
def test_settings_out_of_range_are_refused(setting, named):
    with pytest.raises(UserError, match=named):
        ConstantThenLinear(**{"constant_rounds": 4, "end_round": 8, "floor": 0.5} | setting)


def test_the_recipe_lowers_its_outer_learning_rate_from_one_and_a_half_to_one():
    settings = load.load(["recipe=outerloop"]).method
    factor = instantiate.make(settings.lr_factor)
    assert {factor(round) for round in range(41)} == {1.0}
    assert settings.optimizer.lr * factor(200) == pytest.approx(1.0, abs=1e-4)
