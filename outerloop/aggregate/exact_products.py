"""Compute the scalar products of all pairs of tensors, with the same bits as exact_norms.sum_of_products.

A block of values is converted to float64 once per tensor, not once per pair. If a tensor has few nonzero values in a
block, as after top-k, the other tensors are multiplied at these positions only, because all other products are 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from outerloop.aggregate.exact_norms import PIECE, exponent, largest, scale_down, scaled_up, sum_bits

BLOCK = 1 << 15
"""Number of values of each tensor that a CPU processes at a time. The blocks of some ten tensors then fit in its cache.
The bits of the results do not depend on this number."""
SPARSE = 0.25
"""Largest share of nonzero values in a block with which only these values are multiplied."""


def sums_of_products(tensors: Sequence[Tensor]) -> list[list[float]]:
    """Return Σ x_p x_q for all pairs (p, q) of P tensors of the same shape: P lists of P numbers. P is at least 1.

    A sum is infinite if a value of x_p or x_q is not finite, and ±infinity if it overflows float64.
    """
    tops = [largest(x) for x in tensors]
    finite_P = [math.isfinite(top) for top in tops]
    exponent_P = [exponent(top) if finite else 0 for top, finite in zip(tops, finite_P, strict=True)]
    bits = sum_bits(tensors[0].numel())
    total_PP = sums_of_floors(
        [x if finite else torch.zeros_like(x) for x, finite in zip(tensors, finite_P, strict=True)], exponent_P, bits
    )
    indices = range(len(tensors))
    return [
        [
            scaled_up(total_PP[min(p, q)][max(p, q)], exponent_P[p] + exponent_P[q] - bits)
            if finite_P[p] and finite_P[q]
            else math.inf
            for q in indices
        ]
        for p in indices
    ]


def sums_of_floors(tensors: Sequence[Tensor], exponent_P: Sequence[int], bits: int) -> list[list[int]]:
    """Return Σ floor(x_p x_q · 2^(bits − e_p − e_q)) for all pairs with p <= q, where |x_p| < 2^e_p; 0 for p > q."""
    device, count, power = tensors[0].device, tensors[0].numel(), math.ldexp(1.0, bits)
    size = min(count, BLOCK if device.type == "cpu" else PIECE) or 1
    total_PP = torch.zeros(len(tensors), len(tensors), dtype=torch.int64, device=device)
    scaled_Pn = torch.empty(len(tensors), size, dtype=torch.float64, device=device)
    for blocks in zip(*(x.reshape(-1).split(size) for x in tensors), strict=True):
        scaled_Pn = scaled_Pn[:, : len(blocks[0])]
        for own_n, x, e in zip(scaled_Pn, blocks, exponent_P, strict=True):
            scale_down(own_n.copy_(x), e)
        for p, own_n in enumerate(scaled_Pn):
            others_Qn, own_n = where_nonzero(scaled_Pn[p:], own_n)
            floors_Qn = (others_Qn * own_n).mul_(power).floor_()
            total_PP[p, p:] += floors_Qn.to(torch.int64).sum(1)
    totals: list[list[int]] = total_PP.tolist()
    return totals


def where_nonzero(others_Qn: Tensor, own_n: Tensor) -> tuple[Tensor, Tensor]:
    """Return both tensors at the positions where own_n is not 0, or unchanged if these are more than SPARSE of all."""
    positions = own_n.nonzero().squeeze(1)
    if len(positions) > SPARSE * len(own_n):
        return others_Qn, own_n
    return others_Qn[:, positions], own_n[positions]
