"""Scale each tensor's mean direction to the mean norm (RDA, from Decoupled DiLoCo, arXiv 2604.21428).

    ḡ = (1/P) Σ_p ‖Δ̂_p‖ · m / ‖m‖,   m = (1/P) Σ_p Δ̂_p

Δ̂_p is the decoded payload of peer p, P the number of peers, and ḡ the result.

The more the contributions disagree, the shorter their mean. RDA keeps the direction of the mean, and scales it to the
mean norm of the contributions. exact_norms.py computes the norms, and the mean is scaled in float64 and rounded once,
so that all machines get the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from outerloop.aggregate.exact_norms import norm
from outerloop.aggregate.mean import total
from outerloop.kernels.portable import divide, exact_sum


class RDA:
    """The mean of the contributions, scaled to their mean norm; zero if the mean is zero."""

    needs_norms = False
    linear = False

    def __call__(self, sent: Sequence[Tensor], samples: Sequence[int], norms: Sequence[float]) -> Tensor:
        """Return the mean of P tensors of the same shape, scaled to their mean norm."""
        mean = divide(total(sent), len(sent))
        mean_norm = norm(mean)
        factor = exact_sum(map(norm, sent)) / len(sent) / mean_norm if mean_norm else 0.0
        return (mean.double() * factor).to(mean.dtype)
