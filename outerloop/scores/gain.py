"""Estimate how much more one payload lowers the loss of its sender's assigned windows than the loss of other windows.

    y_w = L(φ; w) − L(φ − x̂; w)       effect of the payload x̂ on window w
    z_w = L(φ; w) − L(φ − x̂₀; w)      effect of the evaluator's own payload x̂₀ of the round on the same window
    b   = Σ_g Σ_w (z_w − z̄_g)(y_w − ȳ_g) / Σ_g Σ_w (z_w − z̄_g)²        slope within the groups g = A, R
    gain = (ȳ_A − ȳ_R) − b (z̄_A − z̄_R)
    s²   = Σ_g Σ_w (y_w − ȳ_g − b (z_w − z̄_g))² / (n_A + n_R − 3)
    error² = s² (1 / n_A + 1 / n_R + (z̄_A − z̄_R)² / Σ_g Σ_w (z_w − z̄_g)²)

The evaluator is the peer that measures. L(φ; w): loss of window w with the weights φ, here the slow weights before the
round. A: the n_A windows assigned to the sender. R: n_R random windows of the same text. ȳ_g, z̄_g: means over the
windows of group g.

A payload whose sender did not train on A lowers the loss of A and R equally, so its expected gain is 0. The effect of a
payload varies so much from window to window that the plain difference ȳ_A − ȳ_R would need several times as many
windows. The effect of the evaluator's own payload varies in a similar way. So b times this effect is subtracted, which
removes most of the variance (analysis of covariance). The slope b accounts for the size and the sign of the payload.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

FEWEST = 4
"""Minimum number of windows in each group."""


@dataclass(frozen=True)
class Estimate:
    """An estimate and its standard error. Gains are in nats per token, benefits (benefit.py) have no unit."""

    value: float
    error: float


def estimate_gain(assigned_y: Tensor, assigned_z: Tensor, other_y: Tensor, other_z: Tensor) -> Estimate | None:
    """Return the gain of one payload, or None if it is undefined.

    It is undefined if a group has fewer than FEWEST windows, if an effect is not finite, or if the error is 0.

    Args:
        assigned_y, assigned_z: y and z of the windows in A, (n_A,).
        other_y, other_z: y and z of the windows in R, (n_R,).
    """
    y_A, z_A, y_R, z_R = (x.double() for x in (assigned_y, assigned_z, other_y, other_z))
    if min(len(y_A), len(y_R)) < FEWEST:
        return None
    centred = [(y - y.mean(), z - z.mean()) for y, z in ((y_A, z_A), (y_R, z_R))]
    zz = sum(float(z.square().sum()) for _, z in centred)
    slope = sum(float((y * z).sum()) for y, z in centred) / zz if zz > 0 else 0.0
    difference_z = float(z_A.mean() - z_R.mean())
    squares = sum(float((y - slope * z).square().sum()) for y, z in centred)
    variance = squares / (len(y_A) + len(y_R) - 3)
    error = math.sqrt(variance * (1 / len(y_A) + 1 / len(y_R) + (difference_z**2 / zz if zz > 0 else 0.0)))
    value = float(y_A.mean() - y_R.mean()) - slope * difference_z
    return Estimate(value, error) if math.isfinite(value) and 0 < error < math.inf else None
