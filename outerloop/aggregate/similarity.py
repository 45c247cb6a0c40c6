"""Measure how well the contributions of a round agree in direction, with the same bits on all peers.

    ρ = Σ_j Σ_{p≠q} Δ̂_pj Δ̂_qj / Σ_j (c_j − 1) Σ_p Δ̂_pj²  =  (A − B) / D
    A = Σ_j (Σ_p Δ̂_pj)²,   B = Σ_j Σ_p Δ̂_pj²,   D = Σ_j (c_j − 1) Σ_p Δ̂_pj²,   c_j = |{p : Δ̂_pj ≠ 0}|

Δ̂_pj is coordinate j of the decoded payload of peer p.

ρ is 1 if, for every coordinate, all peers that sent a value sent the same one, 0 if the values have nothing in common,
and below 0 if they contradict each other. A coordinate that only one peer sent does not contribute, so in sparse
payloads only coordinates chosen by several peers count. With dense payloads, c_j = P and ρ = (1 / s − 1) / (P − 1) with
the gradient diversity s = Σ_p ‖Δ̂_p‖² / ‖Σ_p Δ̂_p‖² (arXiv 1706.05699).

The sums are computed by exact_norms.py, so they do not depend on the number of threads or the GPU.
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
    """Return the agreement ρ of the peers on a fragment, at most 1, or None if no two peers sent the same coordinate.

    `fragment`: for each tensor, the contributions of all P peers, in peer-name order.
    """
    numerator = denominator = 0.0
    for sent in fragment:
        sums = sums_of(sent)
        numerator, denominator = numerator + sums[0], denominator + sums[1]
    return min(1.0, numerator / denominator) if denominator else None  # rounding may lead to slightly more than 1


def sums_of(sent: Sequence[Tensor]) -> tuple[float, float]:
    """Return a tensor's share of the numerator (A − B) and of the denominator (D) of the agreement ρ."""
    squares = lambda x: sum_of_squares(x, of=x.numel())  # noqa: E731
    count = torch.zeros(sent[0].shape, dtype=torch.int64, device=sent[0].device)
    for x in sent:
        count += x != 0
    roots = [math.sqrt(max(0, c - 1)) for c in range(len(sent) + 1)]
    weight = torch.tensor(roots, dtype=sent[0].dtype, device=sent[0].device)[count]
    return squares(total(sent)) - exact_sum(map(squares, sent)), exact_sum(squares(x * weight) for x in sent)
