"""No contribution longer than the median one (Covenant-72B, arXiv 2603.08163), then any other aggregate.

    Δ̂_p ← Δ̂_p · min(1, median_q ‖Δ̂_q‖ / ‖Δ̂_p‖)          norms over the whole fragment

One peer that sends a huge pseudo-gradient, by accident or on purpose, moves the mean no further than an honest one.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from torch import Tensor

from outerloop.types import Aggregate


class MedianClip:
    """Clips to the median norm, then calls `of`.

    Args:
        of: the aggregate of the clipped contributions.
    """

    needs_norms = True

    def __init__(self, *, of: Aggregate) -> None:
        self.of = of

    def __call__(self, sent: Sequence[Tensor], samples: Sequence[int], norms: Sequence[float]) -> Tensor:
        """P tensors of one shape, and the norms of the fragments they are from -> one of the same shape."""
        median = statistics.median(norms)
        clipped = [x * (median / n) if n > median else x for x, n in zip(sent, norms, strict=True)]
        return self.of(clipped, samples, [min(n, median) for n in norms])
