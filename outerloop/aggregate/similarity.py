"""How far the contributions of a round point the same way, to the same bits at all peers.

    ρ = Σ_j Σ_{p≠q} Δ̂_pj Δ̂_qj / Σ_j (c_j − 1) Σ_p Δ̂_pj²  =  (A − B) / D
    A = Σ_j (Σ_p Δ̂_pj)²,   B = Σ_j Σ_p Δ̂_pj²,   D = Σ_j (c_j − 1) Σ_p Δ̂_pj²,   c_j = |{p : Δ̂_pj ≠ 0}|

1 where all who sent a value sent the same, 0 where they have nothing in common, below 0 where they contradict. What one
peer alone sent says nothing, so it is left out: of sparse payloads those values count that several peers chose. With
dense payloads c_j = P, and ρ is the mean agreement of two peers: (1 / s − 1) / (P − 1) with the gradient diversity
s = Σ_p ‖Δ̂_p‖² / ‖Σ_p Δ̂_p‖² (arXiv 1706.05699).

The sums are those of exact_norms.py, which no number of threads and no GPU changes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from outerloop.aggregate.exact_norms import sum_of_squares
from outerloop.aggregate.mean import total
from outerloop.kernels.portable import exact_sum


def agreement(fragment: Iterable[Sequence[Tensor]]) -> float | None:
    """For each tensor what P peers sent, in peer-name order -> ρ; None where no value came from two peers."""
    common = shared = 0.0
    for sent in fragment:
        sums = sums_of(sent)
        common, shared = common + sums[0], shared + sums[1]
    return common / shared if shared else None


def sums_of(sent: Sequence[Tensor]) -> tuple[float, float]:
    """A − B and D of one tensor."""
    squares = lambda x: sum_of_squares(x, of=x.numel())  # noqa: E731
    count = torch.zeros(sent[0].shape, dtype=torch.int64, device=sent[0].device)
    for x in sent:
        count += x != 0
    roots = [math.sqrt(max(0, c - 1)) for c in range(len(sent) + 1)]
    weight = torch.tensor(roots, dtype=sent[0].dtype, device=sent[0].device)[count]
    return squares(total(sent)) - exact_sum(map(squares, sent)), exact_sum(squares(x * weight) for x in sent)
