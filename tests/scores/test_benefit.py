"""The benefit of a payload, by hand."""

import math

import pytest
import torch

from outerloop.scores.benefit import estimate_benefit

Z = torch.tensor([1.0, 2.0, 3.0, 4.0])
REST = torch.tensor([0.1, -0.1, -0.1, 0.1])  # of mean 0


def test_a_payload_that_helps_half_as_much():
    benefit = estimate_benefit(0.5 * Z + REST, Z, norm=1.0, own_norm=1.0)
    assert benefit.value == pytest.approx(0.5)
    # s y − 0.5 z is REST, whose standard deviation is √(4 · 0.01 / 3), and z̄ = 2.5
    assert benefit.error == pytest.approx(math.sqrt(0.04 / 3) / (2 * 2.5))


def test_decreases_are_compared_at_equal_norm():
    """Half the effect with half the norm is the same benefit; errors of the windows weigh twice as much."""
    whole = estimate_benefit(Z + REST, Z, norm=1.0, own_norm=1.0)
    half = estimate_benefit(0.5 * Z + REST, Z, norm=0.5, own_norm=1.0)
    assert half.value == pytest.approx(whole.value) == pytest.approx(1.0)
    assert half.error == pytest.approx(2 * whole.error)


def test_a_payload_that_increases_the_loss_has_a_negative_benefit():
    assert estimate_benefit(REST - Z, Z, norm=1.0, own_norm=0.5).value == pytest.approx(-0.5)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_payload_that_breaks_the_model_has_the_worst_benefit(bad):
    assert estimate_benefit(torch.tensor([1.0, bad, 2.0, 3.0]), Z, norm=1.0, own_norm=1.0).value == -1.0
    assert estimate_benefit(Z, Z, norm=math.inf, own_norm=1.0).value == -1.0


def test_a_payload_of_zeros_has_no_benefit():
    benefit = estimate_benefit(0 * Z, Z, norm=0.0, own_norm=1.0)
    assert benefit.value == 0.0 and benefit.error == pytest.approx(float(Z.std()) / 2 / 2.5)


def test_a_benefit_below_minus_one_keeps_its_ratio_to_the_error():
    twice = estimate_benefit(REST - 2 * Z, Z, norm=1.0, own_norm=1.0)
    assert twice.value == -1.0
    assert twice.error == pytest.approx(math.sqrt(0.04 / 3) / (2 * 2.5) / 2)


@pytest.mark.parametrize(
    ("y", "z", "norm"),
    [
        (Z[:3], Z[:3], 1.0),  # three windows
        (Z, -Z, 1.0),  # the own payload increases the loss
        (Z, 0 * Z, 1.0),
        (Z, Z - 2.0, 1.0),  # its mean is below three standard errors
        (Z, Z, 1.0),  # no variation, so no error
        (Z, torch.tensor([1.0, math.nan, 2.0, 3.0]), 1.0),
    ],
)
def test_effects_that_determine_no_benefit(y, z, norm):
    assert estimate_benefit(y, z, norm=norm, own_norm=1.0) is None
