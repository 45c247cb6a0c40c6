"""Estimate by how much a payload lowers the loss of random windows, relative to the evaluator's own payload.

    y_w = L(φ; w) − L(φ − x̂; w)       effect of the payload x̂ on window w
    z_w = L(φ; w) − L(φ − x̂₀; w)      effect of the evaluator's own payload x̂₀ of the round on the same window
    benefit = (ȳ / ‖x̂‖) / (z̄ / ‖x̂₀‖)
    error²  = Σ_w (s y_w − benefit · z_w)² / ((n − 1) n z̄²),    s = ‖x̂₀‖ / ‖x̂‖

The evaluator is the peer that measures. L(φ; w): loss of window w with the weights φ, here the slow weights before the
round. ȳ, z̄: means over n random windows of the training text.

The benefit compares decreases of the loss per unit of L2 norm. So a peer that has taken fewer inner steps than others,
and sends a shorter payload, has a similar benefit. As long as effects are proportional to payloads, the benefit is the
cosine of x̂ with the gradient of the loss, divided by the cosine of x̂₀ with this gradient. No other peer can influence
the denominator.

A benefit below −1 is replaced by −1, and its error is divided by the same factor. The reason is that the test
(sequential_test.py) divides scores by squared errors. Errors grow with the effect, so without the limit the most
harmful payloads would count least. The benefit of a payload of zeros is 0. That of a payload after which the loss is
not finite is −1.

The benefit also exposes payloads that pass all comparisons with honest payloads: those that have a similar norm and
similar cosines, but increase the loss or hardly lower it (`disguised` in scripts/payload_attacks.py).
"""

from __future__ import annotations

import math

from torch import Tensor

from outerloop.scores.gain import FEWEST, Estimate

SIGNIFICANT = 3.0
"""The benefit is undefined unless z̄ is at least this many standard errors above 0. Otherwise, dividing by it could give
any value."""
NOT_FINITE = 0.1
"""Standard error of the benefit of a payload after which the loss is not finite."""


def estimate_benefit(y: Tensor, z: Tensor, *, norm: float, own_norm: float) -> Estimate | None:
    """Return the benefit of one payload, or None if it is undefined.

    It is undefined if there are fewer than FEWEST windows, if a z is not finite, if z̄ is not clearly positive
    (SIGNIFICANT), or if the error is 0.

    Args:
        y, z: effects of this payload and of the evaluator's own payload on the same windows, (n,).
        norm, own_norm: ‖x̂‖ and ‖x̂₀‖.
    """
    y, z = y.double(), z.double()
    if len(y) < FEWEST or not z.isfinite().all():
        return None
    mean_z, root = float(z.mean()), math.sqrt(len(z))
    if not mean_z > SIGNIFICANT * float(z.std()) / root:
        return None
    if not (y.isfinite().all() and math.isfinite(norm)):
        return Estimate(-1.0, NOT_FINITE)
    scale = own_norm / norm if norm else 0.0
    benefit = scale * float(y.mean()) / mean_z
    error = float((scale * y - benefit * z).std()) / (root * mean_z) if norm else float(z.std()) / (root * mean_z)
    if benefit < -1.0:
        benefit, error = -1.0, error / -benefit
    return Estimate(benefit, error) if error > 0 else None
