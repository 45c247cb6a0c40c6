"""Weaken contributions that do not point in the direction of most others, then apply another aggregate.

    c_p = max(0, median_{q ≠ p} cos(Δ̂_p, Δ̂_q));    m = median_p c_p
    Δ̂_p ← Δ̂_p · min(1, 2 c_p / m)          unchanged for all p if m = 0

Δ̂_p is the decoded payload of peer p. c_p is an upper median, and m a lower median. If (P − 1) / 2 of an odd number P of
peers are liars, the others of an honest peer are half honest and half liars. The upper median is then the cosine with
an honest peer, but the lower one is that with a liar.

A contribution gets the factor 0 if it is orthogonal or opposed to more than half of the others. Examples are
contributions with flipped signs, random noise, and values only where no other peer sends any. Honest contributions have
similar c_p, so most of them have the factor 1. If m = 0, at least half of the contributions are opposed to more than
half of the others, so honest peers cannot be distinguished from liars. This is also the case for two peers whose cosine
is not positive.

Unlike trust.py, this aggregate does not need coordinates that most peers send. So it works for top-k and other sparse
payloads: the cosine of two peers that select mostly different coordinates is small, but positive. In
configs/aggregate/median_cosine.yaml, `of` is `senders`, which does not count a contribution with the factor 0 as a
sender.

FLAME (arXiv 2101.02281) also compares peers by the cosines of all pairs, and clusters the peers by these cosines. Here
the cosines are computed per tensor, with P (P − 1) / 2 scalar products for P peers (exact_products.py), and all
machines get the same bits.

This aggregate does not help against a liar whose contribution points in the direction of the others. Such a liar may
copy or delay honest payloads, or train a back door in addition to the task. It may also follow the others just enough
to keep its weight, and oppose them otherwise.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

from torch import Tensor

from outerloop.aggregate.exact_products import sums_of_products
from outerloop.aggregate.median_clip import scaled
from outerloop.aggregate.trust import cosine
from outerloop.protocols import Aggregate

FULL = 0.5
"""A contribution is not weakened if its c_p is at least this fraction of the median m. With 1, almost half of the
honest contributions would be weakened, although their cosines differ only by chance."""


class MedianCosine:
    """Aggregate that weakens contributions by their median cosine with the others and then calls `of`.

    Args:
        of: aggregate to apply to the weakened contributions.
    """

    linear = False

    def __init__(self, *, of: Aggregate) -> None:
        self.of = of
        self.needs_norms = of.needs_norms
        self.weighs_samples, self.requires = getattr(of, "weighs_samples", False), getattr(of, "requires", ())
        self.combines_values = getattr(of, "combines_values", False)

    def __call__(self, sent: Sequence[Tensor], samples: Sequence[int], norms: Sequence[float]) -> Tensor:
        """Weaken and aggregate P tensors of the same shape."""
        factors = factors_of(median_cosines(sent))
        shorter = [n * factor for n, factor in zip(norms, factors, strict=True)] if self.needs_norms else norms
        return self.of(scaled(sent, factors), samples, shorter)


def median_cosines(sent: Sequence[Tensor]) -> list[float]:
    """Return the upper median of each tensor's cosines with the others, at least 0; 0 for a single tensor."""
    product_PP = sums_of_products(sent)
    length_P = [math.sqrt(product_PP[p][p]) for p in range(len(sent))]
    cosines: list[list[float]] = [[] for _ in sent]
    for p, q in itertools.combinations(range(len(sent)), 2):
        similar = cosine(product_PP[p][q], length_P[p] * length_P[q])
        cosines[p].append(similar)
        cosines[q].append(similar)
    return [max(0.0, statistics.median_high(found)) if found else 0.0 for found in cosines]


def factors_of(cosine_P: Sequence[float]) -> list[float]:
    """Return min(1, 2 c / median c) for each peer, or 1 for all if the lower median is 0."""
    full = FULL * statistics.median_low(cosine_P)
    return [min(1.0, c / full) if full else 1.0 for c in cosine_P]
