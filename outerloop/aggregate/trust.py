"""Weight contributions by their cosine with the coordinate-wise median (after FLTrust, Cao et al., arXiv 2012.13995).

    m = median_p Δ̂_p (coordinate-wise);    w_p = max(0, cos(Δ̂_p, m));    r = median_p ‖Δ̂_p‖
    ḡ = Σ_p w_p (r / ‖Δ̂_p‖) Δ̂_p / Σ_p w_p

A contribution whose cosine with m is negative has the weight 0. All others are scaled to the same norm r, so a peer
gains nothing by scaling its payload. r is the lower median of the norms that are not 0. If all weights are 0, ḡ is m.

FLTrust compares with an update that a server computes on its own data. Here there is neither a server nor state: an
aggregate is called per tensor, without the tensor's name, and also for rounds that are not applied afterwards, so an
average stored from earlier rounds could differ between replicas.

Cosines and norms are computed per tensor, not for the whole fragment: an aggregate receives one tensor at a time.
Norms and dot products are computed by exact_norms.py. Weights, products and sums are computed in float64, in the order
of peer names, and the result is rounded once. So all machines get the same bits.

Not suitable for compressors with which each peer sends different coordinates, such as top-k: the median is then mostly
0, and gives no direction. Rotated payloads (compress/rotated.py) are dense, so they work.

Δ̂_p is the decoded payload of peer p, P the number of peers, and ḡ the result.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from torch import Tensor

from outerloop.aggregate.exact_norms import norm, sum_of_products
from outerloop.aggregate.mean import weighted_sum
from outerloop.aggregate.median import combine_sorted, middle, needs_aligned
from outerloop.kernels.portable import exact_sum


class Trust:
    """The mean of the contributions at their median norm, weighted by their cosine with the coordinate-wise median."""

    needs_norms = False
    linear = False
    combines_values = True
    requires = needs_aligned(
        "so their median gives no direction: set aggregate=median_clip, or compress=int8 or rotated"
    )

    def __call__(self, sent: Sequence[Tensor], samples: Sequence[int], norms: Sequence[float]) -> Tensor:
        """Return the trust-weighted mean of P tensors of the same shape."""
        reference = combine_sorted(sent, middle)
        length, length_P = norm(reference), [norm(x) for x in sent]
        products = (sum_of_products(x, reference, of=x.numel()) for x in sent)
        weight_P = [max(0.0, cosine(product, n * length)) for product, n in zip(products, length_P, strict=True)]
        total_weight = exact_sum(weight_P)
        if not total_weight:
            return reference
        radius = statistics.median_low([n for n in length_P if n])
        factor_P = [radius / n if n else 0.0 for n in length_P]
        return weighted_sum(sent, [w / total_weight * factor for w, factor in zip(weight_P, factor_P, strict=True)])


def cosine(product: float, norms: float) -> float:
    """Return the cosine of two tensors, or 0 if it is undefined.

    product: their scalar product. norms: the product of their norms.
    """
    return product / norms if 0 < norms < math.inf else 0.0
