"""No contribution longer than the median one (Covenant-72B, arXiv 2603.08163), then any other aggregate.

    Δ̂_p ← Δ̂_p · min(1, median_q ‖Δ̂_q‖ / ‖Δ̂_p‖)          norms over the whole fragment

Of an even number of norms the median is the lower one of the two in the middle: their mean would follow the larger one,
and of two peers one alone would set it.

The factor is computed in float64 from norms that are the same bits everywhere (exact_norms.py), and rounded to the type
of the values before it meets them: every product is one rounding, so all routes and all machines come to the same.

One peer that sends a huge pseudo-gradient, by accident or on purpose, moves the mean no further than an honest one.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from torch import Tensor

from outerloop.protocols import Aggregate


class MedianClip:
    """Clips to the median norm, then calls `of`.

    Args:
        of: the aggregate of the clipped contributions.
    """

    needs_norms = True
    linear = False

    def __init__(self, *, of: Aggregate) -> None:
        self.of = of

    def __call__(self, sent: Sequence[Tensor], samples: Sequence[int], norms: Sequence[float]) -> Tensor:
        """P tensors of one shape, and the norms of the fragments they are from -> one of the same shape."""
        factors = self.factors(norms)
        return self.of(scaled(sent, factors), samples, [n * factor for n, factor in zip(norms, factors, strict=True)])

    def factors(self, norms: Sequence[float]) -> list[float]:
        """min(1, median / norm) of each."""
        return factors_of(norms, statistics.median_low(norms))


def factors_of(norms: Sequence[float], limit: float) -> list[float]:
    """min(1, limit / norm) of each; 1 for a norm of zero."""
    return [limit / n if n > limit else 1.0 for n in norms]


def scaled(sent: Sequence[Tensor], factors: Sequence[float]) -> list[Tensor]:
    """Each tensor times its factor; as it is where that is 1."""
    return [x * factor if factor < 1 else x for x, factor in zip(sent, factors, strict=True)]
