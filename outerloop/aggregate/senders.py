"""Each coordinate divided by how many peers sent it. For sparse payloads; of dense ones without zeros it is the mean.

    ḡ_i = Σ_p Δ̂_p,i / |{p : Δ̂_p,i ≠ 0}|

What the SparseLoCo authors' code computes (arXiv 2508.15706), but for a value of exactly 0: here it counts as not sent,
there whatever was sent counts. Of [.4] and [0] the result is .4, and theirs .2. Top-k keeps zeros only of chunks with
fewer than k other values, two-bit and sign codecs decode to 0 only where a whole group is 0.

Payloads of DCT coefficients are aggregated as such: each coefficient over the peers that sent it, as the code of DeMo's
authors has it (arXiv 2411.19870).

Selections of different workers are almost disjoint
(93-95 % with four workers), so against 1/P this is a step nearly P times as long, and it decides whether SparseLoCo
beats DiLoCo.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outerloop.aggregate.mean import total


class Senders:
    """Divide each coordinate's sum by the number of nonzero values; 0 where all are 0."""

    needs_norms = False
    linear = False

    def __call__(self, sent: Sequence[Tensor], samples: Sequence[int], norms: Sequence[float]) -> Tensor:
        """P tensors of one shape -> one of the same."""
        count = torch.zeros(sent[0].shape, dtype=torch.int32, device=sent[0].device)
        for x in sent:
            count += x != 0
        return total(sent).div_(count.clamp_(min=1))
