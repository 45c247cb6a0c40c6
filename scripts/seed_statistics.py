"""Compute statistics of benchmark records over seeds or pairs: the interval of a mean, and an order of losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import stdev

T_95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796)
"""95 % quantiles of Student's t with 1 .. 11 degrees of freedom. The last one is an upper bound for more."""


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the 90 % interval (Student's t) of the mean of these values.

    It is infinite for a single value, and if a value is not finite.
    """
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return math.inf
    return T_95[min(len(values) - 1, len(T_95)) - 1] * stdev(values) / len(values) ** 0.5


def loss_or_inf(loss: float | None) -> float:
    """Return a loss, or infinity if the run failed (None) or diverged, so that its loss is never the lowest."""
    return math.inf if loss is None or not math.isfinite(loss) else loss
