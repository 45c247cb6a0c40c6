"""Average contributions after clipping their distance from a centre (centered clipping, Karimireddy et al. 2021).

    v ← median_p Δ̂_p (coordinate-wise)
    repeat L times:    τ = median_p ‖Δ̂_p − v‖;    v ← v + (1/P) Σ_p (Δ̂_p − v) · min(1, τ / ‖Δ̂_p − v‖)
    ḡ = v

Source: arXiv 2012.10333. One contribution moves v by at most τ/P in an iteration, whatever it contains. τ is the lower
median of the distances. If fewer than half of the peers send wrong values, τ is at most the largest distance of the
others. If no contribution is farther than τ from v, an iteration returns their mean.

The paper starts from the aggregate of the last round. This file starts from the coordinate-wise median, as BTARD does
(arXiv 2106.11257), so that nothing has to be stored: an aggregate is called per tensor, without its name, and also for
rounds that are not applied afterwards, so a stored centre could differ between replicas.

v, τ and the distances are those of one tensor, not of the whole fragment: the norms of whole fragments that an
aggregate receives are not distances from v. The distances are computed by exact_norms.py. Factors, products and sums
are computed in float64, in the order of peer names, and v is rounded to the dtype of the values after each iteration.
So all machines get the same bits.

Not suitable for compressors with which each peer sends different coordinates, such as top-k: the centre is then mostly
0, and every peer is about as far from it as a liar. Rotated payloads (compress/rotated.py) are dense, so they work.

P is the number of peers.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from torch import Tensor

from outerloop.aggregate.exact_norms import distance
from outerloop.aggregate.mean import weighted_sum
from outerloop.aggregate.median import combine_sorted, middle, needs_aligned
from outerloop.aggregate.median_clip import factors_of
from outerloop.kernels.portable import exact_sum
from outerloop.types import UserError


class CenteredClip:
    """The centered clipping of the contributions, with the same weight for all peers.

    Args:
        iterations: number of iterations L, at least 1.

    Raises:
        UserError: if `iterations` is not positive.
    """

    needs_norms = False
    linear = False
    combines_values = True
    requires = needs_aligned(
        "so there is no centre to clip around: set aggregate=median_clip, or compress=int8 or rotated"
    )

    def __init__(self, *, iterations: int) -> None:
        if iterations < 1:
            raise UserError(f"centered_clip iterations={iterations} must be at least 1 (3 is usual)")
        self.iterations = iterations

    def __call__(self, sent: Sequence[Tensor], samples: Sequence[int], norms: Sequence[float]) -> Tensor:
        """Return the centered clipping of P tensors of the same shape."""
        centre = combine_sorted(sent, middle)
        for _ in range(self.iterations):
            apart = [distance(x, centre) for x in sent]
            centre = clipped_step(centre, sent, factors_of(apart, statistics.median_low(apart)))
        return centre


def clipped_step(centre: Tensor, sent: Sequence[Tensor], factors: Sequence[float]) -> Tensor:
    """Return v + (1/P) Σ_p f_p (x_p − v) for the centre v and the factors f_p, as one weighted sum."""
    shares = [factor / len(sent) for factor in factors]
    return weighted_sum([centre, *sent], [1.0 - exact_sum(shares), *shares])
