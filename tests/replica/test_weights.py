"""Slow weights: their dtype, and which saved weights they take."""

import pytest
import torch

from outerloop.replica.weights import Replica
from outerloop.types import UserError
from tests.support import toy


def test_a_float64_model_is_not_rounded_without_a_warning():
    outers = [toy.outer(toy.model().double(), toy.alone(), state_dtype=dtype) for dtype in ("float32", "float64")]
    assert [outer.warnings for outer in outers] == [
        ["0.weight is float64, but is rounded to float32 when a round lands: set state_dtype=float64"],
        [],
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda weights: weights.pop("0.bias"),
            r"other parameters \(only saved run: none; only this run: 0\.bias\)",
        ),
        (lambda weights: weights.update(more=torch.zeros(1)), "only saved run: more; only this run: none"),
        (
            lambda weights: weights.update({"0.bias": torch.zeros(1)}),
            r"the shape of 0\.bias is \[1\] there, \[7\] in this model",
        ),
    ],
)
def test_weights_of_other_parameters_are_refused_by_name(change, said):
    replica = Replica(toy.model(), dtype=torch.float32)
    weights = {name: x + 1 for name, x in replica.slow.items()}
    change(weights)
    before = {name: x.clone() for name, x in replica.slow.items()}
    with pytest.raises(UserError, match=said):
        replica.load_slow(weights)
    assert all(torch.equal(x, before[name]) for name, x in replica.slow.items())


def test_a_run_that_freezes_another_layer_is_refused_by_name_when_it_resumes():
    saved = toy.outer(toy.model(), toy.alone()).state_dict()
    net = toy.model()
    net[0].requires_grad_(False)
    with pytest.raises(UserError, match=r"only (saved|this) run: 0\.bias, 0\.weight"):
        toy.outer(net, toy.alone()).load_state_dict(saved)


def test_an_outer_optimizer_with_other_parameter_groups_is_refused():
    def two(params):
        (_, first), *others = params
        return torch.optim.SGD([{"params": [first]}, {"params": [x for _, x in others]}], lr=1.0)

    saved = toy.outer(toy.model(), toy.alone()).state_dict()
    other = toy.outer(toy.model(), toy.alone(), method=toy.OuterOptimizer(optimizer=two))
    with pytest.raises(UserError, match="the saved state of method does not fit the method of this run"):
        other.load_state_dict(saved)
