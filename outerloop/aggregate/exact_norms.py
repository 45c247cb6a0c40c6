"""Sums of squares with the same bits in any order and on any machine, so that replicas that scale by them stay equal.

    Σ x² = 2^(2e − b) · Σ floor(x² · 2^(b − 2e))       |x| < 2^e for all x;  b = 62 − bits of n;  n: number of values

Floating-point sums depend on their order, which differs with the number of threads and between GPUs; sums of integers
do not. With b as large as 64-bit integers allow, the error is less than n² / 2^62 of the largest square: 2e-7 of it for
a million values.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

PIECE = 1 << 20
"""Number of values processed at a time: 16 MiB of temporaries, whatever the size of the tensor."""
EXPONENTS = 1000
"""Maximum absolute exponent of each power of two by which values are multiplied: float64 can represent such powers."""


def sum_of_squares(x: Tensor, *, of: int) -> float:
    """Return Σ x², or infinity if the sum overflows float64.

    of: n, the number of values including the zeros that x may leave out.
    """
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
    """Return Σ floor(x² · 2^(b − 2e)). Every step but the floor is exact in float64 if x is float32."""
    scaled = x.double() * math.ldexp(1.0, -min(exponent, EXPONENTS)) * math.ldexp(1.0, -max(0, exponent - EXPONENTS))
    return int((scaled.square() * math.ldexp(1.0, bits)).floor().to(torch.int64).sum())
