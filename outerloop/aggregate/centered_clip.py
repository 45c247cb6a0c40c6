"""Average contributions after clipping their distance from a centre (centered clipping, Karimireddy et al. 2021).

    v ← median_p Δ̂_p (coordinate-wise)
    repeat L times:    τ = median_p ‖Δ̂_p − v‖;    v ← v + (1/P) Σ_p (Δ̂_p − v) · min(1, τ / ‖Δ̂_p − v‖)
    ḡ = v

Source: arXiv 2012.10333. One contribution moves v by at most τ/P in an iteration, whatever it contains. τ is the lower
median of the distances. If fewer than half of the peers send wrong values, τ is at most the largest distance of the
others. If no contribution is farther than τ from v, an iteration returns their mean.

The paper starts from the aggregate of the last round. This file starts from the coordinate-wise median, as BTARD does
(arXiv 2106.11257), so that nothing has to be stored (iterative_centre.py).

Not suitable for compressors with which each peer sends different coordinates, such as top-k: the centre is then mostly
0, and every peer is about as far from it as a liar. Rotated payloads (compress/rotated.py) are dense, so they work.

Δ̂_p is the decoded payload of peer p, P the number of peers, and ḡ the result.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from torch import Tensor

from outerloop.aggregate.iterative_centre import IterativeCentre
from outerloop.aggregate.mean import weighted_sum
from outerloop.aggregate.median import needs_aligned
from outerloop.aggregate.median_clip import factors_of
from outerloop.kernels.portable import exact_sum


class CenteredClip(IterativeCentre):
    """The centered clipping of the contributions."""

    requires = needs_aligned(
        "so there is no centre to clip around: set aggregate=median_clip, or compress=int8 or rotated"
    )

    def step(self, centre: Tensor, sent: Sequence[Tensor], distances: Sequence[float]) -> Tensor:
        """Return v + (1/P) Σ_p f_p (x_p − v) for the centre v, as one weighted sum. f_p is the factor of peer p."""
        factors = factors_of(distances, statistics.median_low(distances))
        shares = [factor / len(sent) for factor in factors]
        return weighted_sum([centre, *sent], [1.0 - exact_sum(shares), *shares])
