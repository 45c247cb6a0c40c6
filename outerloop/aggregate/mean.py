"""Take the plain mean, in which all peers have the same weight.

    ḡ = (1/P) Σ_p Δ̂_p

Used by DiLoCo (arXiv 2311.08105) and by SparseLoCo as described in its paper (arXiv 2508.15706).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from outerloop.kernels.portable import divide
from outerloop.kernels.specs import AggregateRule


class Mean:
    """The mean of P contributions, their sum divided by P."""

    needs_norms = False
    linear = True

    def __call__(self, sent: Sequence[Tensor], samples: Sequence[int], norms: Sequence[float]) -> Tensor:
        """Return the mean of P tensors of the same shape."""
        return divide(total(sent), len(sent))

    def aggregate_rule(self) -> AggregateRule:
        """Return the description of this aggregate's arithmetic for the kernels."""
        return AggregateRule(by_senders=False)


def total(sent: Sequence[Tensor]) -> Tensor:
    """Return the sum of the tensors, added in order, as a new tensor."""
    out = sent[0].clone()
    for x in sent[1:]:
        out += x
    return out
