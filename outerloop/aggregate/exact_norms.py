"""Sums of squares that come to the same bits in any order, on any machine: replicas that scale by them stay equal.

    Σ x² = 2^(2e − b) · Σ floor(x² · 2^(b − 2e))       |x| < 2^e for all x, b = 62 − bits of the count of values

Floating-point sums depend on their order, which is another one on every number of threads and on every GPU; sums of
whole numbers do not. With b as large as 64-bit integers allow, the result is off by less than n² / 2^62 of the largest
square: 2e-7 of it for a million values.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

PIECE = 1 << 20
"""Values at a time: 16 MiB of temporaries, whatever the tensor."""
EXPONENTS = 1000
"""Of powers of two on the way that float64 holds."""


def sum_of_squares(x: Tensor, *, of: int) -> float:
    """Σ x², where x is what is not zero of so many values. Infinite for what float64 does not hold."""
    if not x.numel() or not (top := float(x.abs().max())):
        return 0.0
    exponent = max(-EXPONENTS, math.frexp(top)[1])
    bits = 62 - of.bit_length()
    total = sum(whole(piece, exponent, bits) for piece in x.reshape(-1).split(PIECE))
    try:
        return math.ldexp(total, 2 * exponent - bits)
    except OverflowError:
        return math.inf


def whole(x: Tensor, exponent: int, bits: int) -> int:
    """Σ floor(x² · 2^(b − 2e)); every step but the floor is exact in float64 when x is float32."""
    scaled = x.double() * math.ldexp(1.0, -min(exponent, EXPONENTS)) * math.ldexp(1.0, -max(0, exponent - EXPONENTS))
    return int((scaled.square() * math.ldexp(1.0, bits)).floor().to(torch.int64).sum())
