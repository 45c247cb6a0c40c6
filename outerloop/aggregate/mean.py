"""Take the plain mean, in which all peers have the same weight.

    ḡ = (1/P) Σ_p Δ̂_p          Δ̂_p: decoded payload of peer p; P: number of peers

Used by DiLoCo (arXiv 2311.08105) and by SparseLoCo as described in its paper (arXiv 2508.15706).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outerloop.aggregate.exact_norms import PIECE
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


def weighted_sum(sent: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return Σ_p w_p x_p as a new tensor of the shape and dtype of the tensors.

    Products and sums are computed in float64, added in order, PIECE values at a time, and the result is rounded once. A
    tensor of weight 0 is skipped, so that its values have no effect, however large they are.
    """
    counted = [(x.reshape(-1).split(PIECE), weight) for x, weight in zip(sent, weights, strict=True) if weight]
    out = torch.empty_like(sent[0], memory_format=torch.contiguous_format)
    for i, piece in enumerate(out.view(-1).split(PIECE)):
        total_N = torch.zeros_like(piece, dtype=torch.float64)
        for pieces, weight in counted:
            total_N += pieces[i].double() * weight
        piece.copy_(total_N)
    return out
