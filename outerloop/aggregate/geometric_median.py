"""Take the geometric median by the smoothed Weiszfeld algorithm (RFA, Pillutla et al., arXiv 1912.13445).

    argmin_v Σ_p ‖Δ̂_p − v‖, approximately:
    v ← median_p Δ̂_p (coordinate-wise)
    repeat L times:    ν = s · median_p ‖Δ̂_p − v‖;    w_p = 1 / max(ν, ‖Δ̂_p − v‖);    v ← Σ_p w_p Δ̂_p / Σ_p w_p
    ḡ = v

The farther a contribution is from v, the smaller is its weight. This limits how far a minority of peers can move v.
s = 1e-3 limits the weight of a contribution that is equal to v. The paper starts from the mean. The coordinate-wise
median is closer to most contributions, so a very large contribution has a small weight from the first iteration on.

Not suitable for compressors with which each peer sends different coordinates, such as top-k: all contributions are then
about equally far from each other. Rotated payloads (compress/rotated.py) are dense, so they work.

Δ̂_p is the decoded payload of peer p, P the number of peers, L the number of iterations, and ḡ the result.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from torch import Tensor

from outerloop.aggregate.iterative_centre import IterativeCentre
from outerloop.aggregate.mean import weighted_sum
from outerloop.aggregate.median import needs_aligned
from outerloop.kernels.portable import exact_sum

SMOOTHING = 1e-3
"""The fraction s of the median distance that replaces shorter distances."""


class GeometricMedian(IterativeCentre):
    """The geometric median of the contributions."""

    requires = needs_aligned(
        "so an honest payload is as far from the others as a wrong one: set aggregate=median_clip, or compress=int8 or"
        " rotated"
    )

    def step(self, centre: Tensor, sent: Sequence[Tensor], distances: Sequence[float]) -> Tensor:
        """Return Σ_p w_p x_p / Σ_p w_p, or the centre if at least half of the contributions are equal to it."""
        shortest = SMOOTHING * statistics.median_low(distances)
        if not shortest:
            return centre
        weights = [1.0 / max(shortest, d) for d in distances]
        whole = exact_sum(weights)
        return weighted_sum(sent, [weight / whole for weight in weights])
