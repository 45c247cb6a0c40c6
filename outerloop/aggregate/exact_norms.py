"""Compute sums of squares and products with the same bits in any order on any machine, so that replicas stay equal.

    Σ x² = 2^(2e − b) · Σ floor(x² · 2^(b − 2e))       |x| < 2^e for all x;  b = 62 − bits of n;  n: number of values

Floating-point sums depend on the order of summation, which varies with the number of threads and the GPU. Integer sums
do not. With b as large as 64-bit integers allow, the error is less than n² / 2^62 times the largest square, which is
2e-7 of it for a million values. Sums of products Σ x y are computed in the same way, with |x| < 2^e and |y| < 2^f.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outerloop.kernels.finite import all_finite
from outerloop.kernels.portable import exact_sum

PIECE = 1 << 20
"""Number of values processed at a time, which limits temporaries to 16 MiB whatever the size of the tensor."""
EXPONENTS = 1000
"""Largest absolute exponent of the powers of two by which values are multiplied, so that float64 can represent them."""


def sum_of_squares(x: Tensor, *, of: int) -> float:
    """Return Σ x², or infinity if the sum overflows float64.

    of: number of values, including zeros that x may omit.
    """
    return sum_of_products(x, x, of=of)


def sum_of_products(x: Tensor, y: Tensor, *, of: int) -> float:
    """Return Σ x y over two tensors of the same shape, or ±infinity if the sum overflows float64.

    of: number of values, including zeros that x and y may omit.
    """
    top_x = float(x.abs().max()) if x.numel() else 0.0
    top_y = top_x if y is x else float(y.abs().max()) if y.numel() else 0.0
    if not (top_x and top_y):
        return 0.0
    e, f = (max(-EXPONENTS, math.frexp(top)[1]) for top in (top_x, top_y))
    bits = 62 - of.bit_length()
    lefts, rights = x.reshape(-1).split(PIECE), y.reshape(-1).split(PIECE)
    total = sum(whole(a, e, b, f, bits) for a, b in zip(lefts, lefts if y is x else rights, strict=True))
    try:
        return math.ldexp(total, e + f - bits)
    except OverflowError:
        return math.copysign(math.inf, total)


def shrunk(x: Tensor, exponent: int) -> Tensor:
    """Return x · 2^(−exponent) in float64, without rounding if x is float32."""
    return x.double() * math.ldexp(1.0, -min(exponent, EXPONENTS)) * math.ldexp(1.0, -max(0, exponent - EXPONENTS))


def whole(x: Tensor, e: int, y: Tensor, f: int, bits: int) -> int:
    """Return Σ floor(x y · 2^(bits − e − f)) for |x| < 2^e and |y| < 2^f. For float32 values, only the floor rounds."""
    left = shrunk(x, e)
    right = left if y is x else shrunk(y, f)
    return int((left * right * math.ldexp(1.0, bits)).floor().to(torch.int64).sum())


def norm(x: Tensor) -> float:
    """Return the L2 norm of a tensor."""
    return math.sqrt(sum_of_squares(x, of=x.numel()))


def distance(x: Tensor, y: Tensor) -> float:
    """Return ‖x − y‖ for two tensors of the same shape, or infinity if a difference is not finite.

    Differences are computed in float64, PIECE values at a time.
    """
    pieces = zip(x.reshape(-1).split(PIECE), y.reshape(-1).split(PIECE), strict=True)
    return math.sqrt(exact_sum(squares_or_infinity(a.double() - b.double()) for a, b in pieces))


def squares_or_infinity(x: Tensor) -> float:
    """Return Σ x², or infinity if a value of x is not finite."""
    return sum_of_squares(x, of=x.numel()) if all_finite(x) else math.inf
