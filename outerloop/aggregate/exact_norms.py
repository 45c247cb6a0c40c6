"""Compute sums of squares with the same bits in any order on any machine, so that replicas scaled by them stay equal.

    Σ x² = 2^(2e − b) · Σ floor(x² · 2^(b − 2e))       |x| < 2^e for all x;  b = 62 − bits of n;  n: number of values

Floating-point sums depend on the order of summation, which varies with the number of threads and the GPU. Integer sums
do not. With b as large as 64-bit integers allow, the error is less than n² / 2^62 times the largest square, which is
2e-7 of it for a million values.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

PIECE = 1 << 20
"""Number of values processed at a time, which limits temporaries to 16 MiB whatever the size of the tensor."""
EXPONENTS = 1000
"""Largest absolute exponent of the powers of two by which values are multiplied, so that float64 can represent them."""


def sum_of_squares(x: Tensor, *, of: int) -> float:
    """Return Σ x², or infinity if the sum overflows float64.

    of: number of values, including zeros that x may omit.
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
    """Return Σ floor(x² · 2^(b − 2e)), for e = `exponent`, b = `bits`. For float32 x, only the floor rounds."""
    scaled = x.double() * math.ldexp(1.0, -min(exponent, EXPONENTS)) * math.ldexp(1.0, -max(0, exponent - EXPONENTS))
    return int((scaled.square() * math.ldexp(1.0, bits)).floor().to(torch.int64).sum())
