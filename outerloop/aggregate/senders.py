"""Each coordinate divided by how many peers sent it. For sparse payloads; with dense ones it equals the mean.

    ḡ_i = Σ_p Δ̂_p,i / |{p : Δ̂_p,i ≠ 0}|

What the SparseLoCo authors' code computes (arXiv 2508.15706). Selections of different workers are almost disjoint
(93-95 % with four workers), so against 1/P this is a step nearly P times as long, and it decides whether SparseLoCo
beats DiLoCo.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outerloop.aggregate.mean import total


class Senders:
    """The sum over the number of senders, 0 where nobody sent."""

    needs_norms = False
    linear = False

    def __call__(self, sent: Sequence[Tensor], samples: Sequence[int], norms: Sequence[float]) -> Tensor:
        """P tensors of one shape -> one of the same."""
        count = torch.zeros(sent[0].shape, dtype=torch.int32, device=sent[0].device)
        for x in sent:
            count += x != 0
        return total(sent).div_(count.clamp_(min=1))
