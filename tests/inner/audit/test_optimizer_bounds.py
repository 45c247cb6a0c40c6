"""The optimizer states to which clipped gradients can lead."""

import math

import pytest
import torch

from outerloop.inner.audit.optimizer_bounds import momentum_gain, refuse_impossible

HONEST = {
    "updates": torch.tensor(3),
    "optimizer": {
        "state": {
            0: {"momentum_buffer": torch.tensor([0.5, -0.5])},
            1: {
                "step": torch.tensor(3.0),
                "exp_avg": torch.tensor([-0.5, 0.2]),
                "exp_avg_sq": torch.tensor([0.25, 0.0]),
            },
        }
    },
}


def test_states_at_the_bounds_are_possible():
    refuse_impossible(HONEST, 0.5)
    refuse_impossible(HONEST, None)
    refuse_impossible({"updates": torch.tensor(0), "optimizer": {"state": {}}}, 0.5)


@pytest.mark.parametrize(
    "name, values",
    [
        ("exp_avg", [0.52, 0.0]),
        ("exp_avg", [math.nan, 0.0]),
        ("exp_avg_sq", [0.27, 0.0]),
        ("exp_avg_sq", [-1e-9, 0.0]),
        ("step", -1.0),
        ("step", math.inf),
    ],
)
def test_other_states_are_refused(name, values):
    state = {"updates": torch.tensor(3), "state": [{name: torch.tensor(values)}]}
    with pytest.raises(ValueError, match=f"{name} in the optimizer's state must be finite and within"):
        refuse_impossible(state, 0.5)


@pytest.mark.parametrize(("decay", "gain"), [(0.0, 4.0), (0.1, math.inf)])
def test_the_momentum_of_sgd_is_a_sum_of_gradients(decay, gain):
    """With momentum 3/4, the sum of 1 + 3/4 + 9/16 + ... is 4."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.75, weight_decay=decay)
    assert momentum_gain(optimizer) == gain
    refuse_impossible({"momentum_buffer": torch.tensor([2.0])}, 0.5, gain=gain)
    with pytest.raises(ValueError, match=r"must be finite and within -2 \.\. 2"):
        refuse_impossible({"momentum_buffer": torch.tensor([2.1])}, 0.5, gain=4.0)
    assert momentum_gain(torch.optim.AdamW([torch.zeros(1, requires_grad=True)])) == 1


def test_without_clipping_only_signs_and_finite_values_are_checked():
    refuse_impossible({"exp_avg": torch.tensor([-1e30]), "exp_avg_sq": torch.tensor([1e30])}, None)
    for name, value in [("exp_avg_sq", -1.0), ("exp_avg", math.inf)]:
        with pytest.raises(ValueError, match=name):
            refuse_impossible({name: torch.tensor([value])}, None)
