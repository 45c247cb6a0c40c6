"""Sums of squares that are the same on every machine: sums of integers, which do not depend on their order.

    Σ floor(x² · 2^(bits − 2e))       e: smallest exponent with |x| < 2^e for all values of a row

aggregate/exact_norms.py explains the formula and the choice of `bits`. A float64 holds the square of a float32 exactly,
so only the floor rounds.
Sizes: P rows of N values.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outerloop.kernels.operator import operator

PIECE = 1 << 20
"""Number of values processed at a time, which limits temporaries to 16 MiB whatever the size of the tensor."""


@operator()
def exact_squares(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return the largest magnitude of each row of x, (P,) float32, and the sum of each row, (P,) int64.

    x: (P, N) float32 with N > 0. The sum is 0 if a value of the row is not finite; the largest magnitude is then not
    finite either.
    """
    lowest_P, highest_P = x.aminmax(dim=1)
    top_P = torch.maximum(lowest_P.abs(), highest_P.abs())
    factor_P1 = torch.tensor([factor(top, bits) for top in top_P.tolist()], dtype=torch.float64, device=x.device)[
        :, None
    ]
    pieces = x.split(max(1, PIECE // max(1, len(x))), dim=1)
    total_P = sum((piece.double().square() * factor_P1).floor().to(torch.int64).sum(1) for piece in pieces)
    return top_P, torch.where(top_P.isfinite(), total_P, 0)


@exact_squares.fake
def _(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    return x.new_empty(len(x)), x.new_empty(len(x), dtype=torch.int64)


def factor(top: float, bits: int) -> float:
    """Return 2^(bits − 2e), where e is the smallest exponent with top < 2^e; 0 if top is not finite."""
    return math.ldexp(1.0, bits - 2 * math.frexp(top)[1]) if math.isfinite(top) else 0.0
