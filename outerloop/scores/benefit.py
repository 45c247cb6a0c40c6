"""Estimate by how much a payload of another peer lowers the loss of random windows, compared with one's own payload.

    y_w = L(φ; w) − L(φ − x̂; w)       effect of the payload x̂ on window w
    z_w = L(φ; w) − L(φ − x̂₀; w)      effect of the evaluator's own payload x̂₀ of the round on the same window
    benefit = (ȳ / ‖x̂‖) / (z̄ / ‖x̂₀‖)
    error²  = Σ_w (s y_w − benefit · z_w)² / ((n − 1) n z̄²),    s = ‖x̂₀‖ / ‖x̂‖

L(φ; w): loss of window w with the weights φ, here the slow weights before the round. ȳ, z̄: means over n random windows
of the training text. The benefit compares decreases of the loss per unit of L2 norm, so a peer that has taken fewer
inner steps than others, and sends a shorter payload, has a similar benefit. As long as effects are proportional to
payloads, it is the cosine of x̂ with the gradient of the loss, divided by that of x̂₀. No other peer can influence the
denominator.

A benefit below −1 is replaced by −1, with the same ratio to its error. Effects and their errors grow together, so that
a test, which weights scores by their errors, would count the most harmful payloads least.

A payload that resembles honest payloads in its norm and its cosines with them, but increases the loss or hardly lowers
it, has a low benefit (`disguised` in scripts/payload_attacks.py).
"""

from __future__ import annotations

import math

from torch import Tensor

from outerloop.scores.gain import FEWEST, Estimate

SIGNIFICANT = 3.0
"""The benefit is undefined unless z̄ is at least this many standard errors above 0. Otherwise dividing by it would give
any value."""


def estimate_benefit(y: Tensor, z: Tensor, *, norm: float, own_norm: float) -> Estimate | None:
    """Return the benefit of one payload; None if it is undefined (too few windows, no clear effect z̄, or a norm of 0).

    Args:
        y, z: effects of the payload and of the evaluator's own one on the same windows, (n,).
        norm, own_norm: ‖x̂‖ and ‖x̂₀‖.
    """
    y, z = y.double(), z.double()
    if len(y) < FEWEST or not norm > 0:
        return None
    usual = float(z.mean())
    if not usual > SIGNIFICANT * float(z.std()) / math.sqrt(len(z)):
        return None
    scale = own_norm / norm
    benefit = scale * float(y.mean()) / usual
    error = float((scale * y - benefit * z).std()) / (math.sqrt(len(y)) * usual)
    if benefit < -1.0:
        benefit, error = -1.0, error / -benefit
    return Estimate(benefit, error) if math.isfinite(benefit) and 0 < error < math.inf else None
