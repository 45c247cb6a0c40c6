"""Divide each coordinate's sum by the number of peers that sent it. For dense payloads without zeros this is the mean.

    ḡ_i = Σ_p Δ̂_p,i / |{p : Δ̂_p,i ≠ 0}|          Δ̂_p,i: coordinate i of the decoded payload of peer p

Use it for sparse payloads. The source code of SparseLoCo's authors (arXiv 2508.15706) computes the same, except that it
counts values that are exactly 0 as sent, whereas this file counts them as not sent. If two peers send 0.4 and 0, their
code computes 0.2, and this file 0.4. The difference is rarely visible: top-k selects zeros only in chunks with fewer
than k nonzero values, and two-bit and sign codecs decode to 0 only if a whole group is 0.

Payloads of DCT coefficients are aggregated as coefficients: each coefficient is averaged over the peers that sent it,
as in the source code of DeMo's authors (arXiv 2411.19870).

With top-k, different workers select mostly different coordinates: with four workers, 93 to 95 % of the coordinates that
are sent have one sender. So the outer step is nearly P times as long as with division by P.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outerloop.aggregate.mean import total
from outerloop.kernels.specs import AggregateRule


class Senders:
    """The sum of each coordinate, divided by its number of nonzero values; 0 if all values are 0."""

    needs_norms = False
    linear = False

    def __call__(self, sent: Sequence[Tensor], samples: Sequence[int], norms: Sequence[float]) -> Tensor:
        """Aggregate P tensors of the same shape, dividing each coordinate's sum by its number of senders."""
        count = torch.zeros(sent[0].shape, dtype=torch.int32, device=sent[0].device)
        for x in sent:
            count += x != 0
        return total(sent).div_(count.clamp_(min=1))

    def aggregate_rule(self) -> AggregateRule:
        """Return the description of this aggregate's arithmetic for the kernels."""
        return AggregateRule(by_senders=True)
