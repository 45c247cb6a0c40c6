"""Take the geometric median by the smoothed Weiszfeld algorithm (RFA, Pillutla et al., arXiv 1912.13445).

    argmin_v Σ_p ‖Δ̂_p − v‖, approximately:
    v ← median_p Δ̂_p (coordinate-wise)
    repeat L times:    ν = s · median_p ‖Δ̂_p − v‖;    w_p = 1 / max(ν, ‖Δ̂_p − v‖);    v ← Σ_p w_p Δ̂_p / Σ_p w_p
    ḡ = v

The farther a contribution is from the others, the smaller is its weight, and a minority of peers cannot move v
arbitrarily far. s = 1e-3 limits the weight of a contribution that is equal to v. The paper starts from the mean. The
coordinate-wise median is closer, so a contribution of any size has a small weight from the first iteration on.

v and the distances are those of one tensor, not of the whole fragment: the norms of whole fragments that an aggregate
receives are not distances from v. The distances are computed by exact_norms.py. Weights, products and sums are computed
in float64, in the order of peer names, and v is rounded to the dtype of the values after each iteration. So all
machines get the same bits.

Not suitable for compressors with which each peer sends different coordinates, such as top-k: all contributions are then
about equally far from each other. Rotated payloads (compress/rotated.py) are dense, so they work.

P is the number of peers.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from torch import Tensor

from outerloop.aggregate.exact_norms import distance
from outerloop.aggregate.mean import weighted_sum
from outerloop.aggregate.median import combine_sorted, middle, needs_aligned
from outerloop.kernels.portable import exact_sum
from outerloop.types import UserError

SMOOTHING = 1e-3
"""The fraction s of the median distance that replaces shorter distances."""


class GeometricMedian:
    """The geometric median of the contributions, with the same weight for all peers.

    Args:
        iterations: number of iterations L, at least 1.

    Raises:
        UserError: if `iterations` is not positive.
    """

    needs_norms = False
    linear = False
    combines_values = True
    requires = needs_aligned(
        "so honest contributions are as far apart as wrong ones: set aggregate=median_clip, or compress=int8 or rotated"
    )

    def __init__(self, *, iterations: int) -> None:
        if iterations < 1:
            raise UserError(f"geometric_median iterations={iterations} must be at least 1 (4 is usual)")
        self.iterations = iterations

    def __call__(self, sent: Sequence[Tensor], samples: Sequence[int], norms: Sequence[float]) -> Tensor:
        """Return the geometric median of P tensors of the same shape."""
        centre = combine_sorted(sent, middle)
        for _ in range(self.iterations):
            apart = [distance(x, centre) for x in sent]
            shortest = SMOOTHING * statistics.median_low(apart)
            if not shortest:  # at least half of the contributions are equal, so their value is the geometric median
                return centre
            centre = weighted_sum(sent, shares([1.0 / max(shortest, d) for d in apart]))
        return centre


def shares(weights: Sequence[float]) -> list[float]:
    """Return each weight divided by the sum of all weights, which must be positive."""
    whole = exact_sum(weights)
    return [weight / whole for weight in weights]
