"""Clip every contribution to the median norm (Covenant-72B, arXiv 2603.08163), then apply another aggregate.

    Δ̂_p ← Δ̂_p · min(1, median_q ‖Δ̂_q‖ / ‖Δ̂_p‖)          norms over the whole fragment

Δ̂_p is the decoded payload of peer p.

The median excludes norms of zero. Otherwise, peers that send only zeros, such as one of two, would set it to zero and
remove the contributions of all others. For an even number of norms, the median is the lower of the two middle norms.
The mean of these two would grow with the larger one, so that one of two peers could set it alone.

The factor is computed in float64 from norms that have the same bits on all machines (exact_norms.py). It is rounded to
the dtype of the values before the multiplication, and each product is rounded once. So this file and the kernels give
the same bits on all machines.

A peer that sends a huge pseudo-gradient, by accident or on purpose, moves the mean at most as far as an honest peer.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from outerloop.kernels.specs import AggregateRule, aggregate_rule
from outerloop.protocols import Aggregate


class MedianClip:
    """Aggregate that clips contributions to the median norm and then calls `of`.

    Args:
        of: aggregate to apply to the clipped contributions.
    """

    needs_norms = True
    linear = False

    def __init__(self, *, of: Aggregate) -> None:
        self.of = of
        self.weighs_samples, self.requires = getattr(of, "weighs_samples", False), getattr(of, "requires", ())
        self.combines_values = getattr(of, "combines_values", False)

    def __call__(self, sent: Sequence[Tensor], samples: Sequence[int], norms: Sequence[float]) -> Tensor:
        """Clip and aggregate P tensors of the same shape. `norms`: norm of each peer's whole fragment."""
        factors = self.factors(norms)
        return self.of(scaled(sent, factors), samples, [n * factor for n, factor in zip(norms, factors, strict=True)])

    def aggregate_rule(self) -> AggregateRule | None:
        """Return the description of this aggregate's arithmetic for the kernels.

        Return None if `of` has no such description, or clips as well.
        """
        rule = aggregate_rule(self.of)
        return AggregateRule(rule.by_senders, self.factors) if rule and not rule.factors else None

    def factors(self, norms: Sequence[float]) -> list[float]:
        """Return min(1, median / norm) for each norm, or 1 if the norm is zero."""
        return factors_of(norms, median(norms))


def median(values: Iterable[Any]) -> Any:
    """Return the lower median of the positive values, or 0 if there are no positive values."""
    positive = [x for x in values if x > 0]
    return statistics.median_low(positive) if positive else 0


def factors_of(norms: Sequence[float], limit: float) -> list[float]:
    """Return min(1, limit / norm) for each norm, or 1 if the norm is zero."""
    return [limit / n if n > limit else 1.0 for n in norms]


def scaled(sent: Sequence[Tensor], factors: Sequence[float]) -> list[Tensor]:
    """Return each tensor times its factor, or the tensor itself if the factor is 1."""
    return [x * factor if factor < 1 else x for x, factor in zip(sent, factors, strict=True)]
