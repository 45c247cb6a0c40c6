"""The gain of a payload on assigned windows, by hand."""

import math

import pytest
import torch

from outerloop.scores.gain import estimate_gain

Z = torch.tensor([0.0, 1.0, 2.0, 3.0])
REST = torch.tensor([0.1, -0.1, -0.1, 0.1])  # of mean 0 and orthogonal to Z, so that the slope is exactly 2


def test_equal_references():
    gain = estimate_gain(2 * Z + 1 + REST, Z, 2 * Z + REST, Z)
    assert gain.value == pytest.approx(1.0)
    variance = 8 * 0.01 / 5  # eight residuals of 0.1, and 4 + 4 − 3 degrees of freedom
    assert gain.error == pytest.approx(math.sqrt(variance * (1 / 4 + 1 / 4)))


def test_windows_that_are_easier_to_improve_do_not_count_as_a_gain():
    easy = Z + 10
    gain = estimate_gain(2 * easy + REST, easy, 2 * Z + REST, Z)
    assert gain.value == pytest.approx(0.0, abs=1e-5)
    spread = 2 * (1.5**2 + 0.5**2 + 0.5**2 + 1.5**2)  # Σ (z − z̄)² of both groups, 10
    assert gain.error == pytest.approx(math.sqrt(0.016 * (1 / 4 + 1 / 4 + 10**2 / spread)), rel=1e-4)


def test_a_payload_with_flipped_signs_has_the_opposite_gain():
    honest = estimate_gain(2 * Z + 1 + REST, Z, 2 * Z + REST, Z)
    flipped = estimate_gain(-(2 * Z + 1 + REST), Z, -(2 * Z + REST), Z)
    assert (flipped.value, flipped.error) == pytest.approx((-honest.value, honest.error))


@pytest.mark.parametrize(
    "y",
    [torch.zeros(3), torch.zeros(4), torch.tensor([0.0, 1.0, math.inf, 2.0]), torch.tensor([0.0, 1.0, math.nan, 2.0])],
)
def test_effects_that_determine_no_gain(y):
    """Three windows, a payload without any effect, and losses that overflow."""
    assert estimate_gain(y, Z[: len(y)], 0 * Z, Z) is None


def test_a_reference_without_effect_is_the_plain_difference():
    gain = estimate_gain(1 + REST, 0 * Z, REST, 0 * Z)
    assert gain.value == pytest.approx(1.0) and gain.error == pytest.approx(math.sqrt(0.016 / 2))
