"""Compute sums of squares and of products so that every machine gets the same bits, and replicas stay equal.

    Σ x² ≈ 2^(2e − b) · Σ floor(x² · 2^(b − 2e))

    e    smallest exponent with |x| < 2^e for all values x
    n    number of values
    b    62 minus the number of binary digits of n, so that the sum of integers fits into 63 bits

Floating-point sums depend on the order of summation, which varies with the number of threads and the GPU. Integer sums
do not. The error is less than n² / 2^59 times the largest square, which is 2e-6 of it for a million values. Sums of
products Σ x y are computed in the same way, with |x| < 2^e and |y| < 2^f.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outerloop.kernels.exact_squares import PIECE, exact_squares
from outerloop.kernels.portable import exact_sum

BLOCK = 1 << 18
"""Number of values of a sum that a CPU processes at a time. With PIECE values at a time, a sum takes up to 8 times as
long: its temporaries do not fit in the cache, and their memory is requested from the system each time. The bits of the
result do not depend on this number.
"""
EXPONENTS = 1000
"""Largest absolute exponent of the powers of two by which values are multiplied, so that float64 can represent them."""


def sum_of_squares(x: Tensor, *, of: int) -> float:
    """Return Σ x², or infinity if the sum overflows float64 or a value is not finite.

    of: number of values, including zeros that x may omit.
    """
    return sum_of_products(x, x, of=of) if x.dtype == torch.float64 else sums_of_squares(x.reshape(1, -1), of=of)[0]


def sums_of_squares(x_PN: Tensor, *, of: int) -> list[float]:
    """Return Σ x² of each row of a tensor of at most 32 bits per value, or infinity for rows that are not finite.

    of: number of values of a row, including zeros that x may omit.
    """
    if not x_PN.numel():
        return [0.0] * len(x_PN)
    bits = sum_bits(of)
    top_P, total_P = exact_squares(x_PN.float(), bits)
    sums = zip(top_P.tolist(), total_P.tolist(), strict=True)
    return [scaled_up(total, 2 * exponent(top) - bits) if math.isfinite(top) else math.inf for top, total in sums]


def sum_of_products(x: Tensor, y: Tensor, *, of: int) -> float:
    """Return Σ x y over two tensors of the same shape, or infinity if a value is not finite, or ±infinity on overflow.

    of: number of values, including zeros that x and y may omit.
    """
    top_x = largest(x)
    top_y = top_x if y is x else largest(y)
    if not (math.isfinite(top_x) and math.isfinite(top_y)):
        return math.inf
    if not (top_x and top_y):
        return 0.0
    e, f = exponent(top_x), exponent(top_y)
    bits = sum_bits(of)
    size = BLOCK if x.device.type == "cpu" else PIECE
    lefts, rights = x.reshape(-1).split(size), y.reshape(-1).split(size)
    total = sum(sum_of_floors(a, e, b, f, bits) for a, b in zip(lefts, lefts if y is x else rights, strict=True))
    return scaled_up(total, e + f - bits)


def exponent(top: float) -> int:
    """Return e, the smallest exponent with top < 2^e, but at least -EXPONENTS, for a finite top >= 0; 0 if top is 0."""
    return max(-EXPONENTS, math.frexp(top)[1])


def sum_bits(count: int) -> int:
    """Return b, the number of bits of a product, for sums of `count` products."""
    return 62 - count.bit_length()


def scaled_up(total: int, by: int) -> float:
    """Return total · 2^by, or ±infinity if it overflows float64."""
    try:
        return math.ldexp(total, by)
    except OverflowError:
        return math.copysign(math.inf, total)


def largest(x: Tensor) -> float:
    """Return the largest magnitude in x, or 0 if x is empty. It is not finite if a value of x is not."""
    return float(torch.stack(x.aminmax()).abs().max()) if x.numel() else 0.0


def scale_down(x: Tensor, exponent: int) -> Tensor:
    """Multiply a float64 tensor by 2^(−exponent) in place, without rounding if its values are those of float32.

    Exponents above EXPONENTS need two steps, because 2^(−exponent) alone may be too small for float64.
    """
    x *= math.ldexp(1.0, -min(exponent, EXPONENTS))
    if exponent > EXPONENTS:
        x *= math.ldexp(1.0, EXPONENTS - exponent)
    return x


def sum_of_floors(x: Tensor, e: int, y: Tensor, f: int, bits: int) -> int:
    """Return Σ floor(x y · 2^(bits − e − f)) for |x| < 2^e and |y| < 2^f. For float32 values, only the floor rounds."""
    left = scale_down(x.to(torch.float64, copy=True), e)
    right = left if y is x else scale_down(y.to(torch.float64, copy=True), f)
    return int((left * right * math.ldexp(1.0, bits)).floor().to(torch.int64).sum())


def norm(x: Tensor) -> float:
    """Return the L2 norm of a tensor."""
    return math.sqrt(sum_of_squares(x, of=x.numel()))


def distance(x: Tensor, y: Tensor) -> float:
    """Return ‖x − y‖ for two tensors of the same shape, or infinity if a difference is not finite.

    Differences are computed in float64, PIECE values at a time.
    """
    pieces = zip(x.reshape(-1).split(PIECE), y.reshape(-1).split(PIECE), strict=True)
    differences = (a.double() - b.double() for a, b in pieces)
    return math.sqrt(exact_sum(sum_of_squares(piece, of=piece.numel()) for piece in differences))
