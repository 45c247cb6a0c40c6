"""Arithmetic with bit-identical results on every machine.

IEEE 754 defines the sum, product, quotient and square root of floats to the last bit. So a formula that is computed
with one such operation at a time gives equal bits on every CPU and on NVIDIA GPUs. The results of the following
operations may differ between machines, so they must not be used for state that replicas share. An arrow points to the
replacement, if there is one.

    add(alpha=), addcmul, addcdiv, lerp    one rounding on machines with fused multiply-add, two on others
    sum, mean, norm, matmul of tensors     the order depends on vector width, threads and BLAS
                                           -> aggregate/exact_norms.py
    tensor / number                        a GPU multiplies by the reciprocal -> `divide`
    sqrt of tensors                        the last bit of MKL's sqrt on a CPU may differ -> `square_root`
    sum of Python floats                   a compensated sum from Python 3.12 on -> `exact_sum`
    pow, cos, exp, log                     the last bit depends on the C library -> `power`, `cosine`, `geometric`
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Context

import numpy as np
import torch
from torch import Tensor

DECIMAL = Context(prec=40)
COSINE_TERMS = 12
"""Number of terms of the Taylor series of `cosine`: the first omitted term is below 1e-19 at π/2."""


def divide(x: Tensor, by: float) -> Tensor:
    """Return x / by in the dtype of x, correctly rounded.

    If the divisor is a Python number, CUDA multiplies by its reciprocal instead, which rounds twice.
    """
    return x / x.new_full((), by)


def square_root(x: Tensor) -> Tensor:
    """Return √x, rounded once (any shape, float32 or float64).

    On a CPU, the root is computed by numpy, which uses the CPU's own instruction; torch may call MKL, whose result can
    differ in the last bit.
    """
    if not x.is_cpu:
        return x.sqrt()
    root = torch.empty_like(x)
    np.sqrt(x.numpy(), out=root.numpy())
    return root


def exact_sum(values: Iterable[float]) -> float:
    """Return the sum of floats, rounded once, or infinity if it overflows float64."""
    try:
        return math.fsum(values)
    except OverflowError:
        return math.inf


def power(base: float, exponent: int) -> float:
    """Return base^exponent for an exponent >= 0, by repeated squaring.

    The error is at most that of `exponent` successive roundings.
    """
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def cosine(half_turns: float) -> float:
    """Return cos(π · half_turns) for half_turns within 0 .. 1, with an error below 1e-15."""
    if half_turns > 0.5:
        return -cosine(1.0 - half_turns)
    square, result = (math.pi * half_turns) * (math.pi * half_turns), 1.0
    for n in range(COSINE_TERMS, 0, -1):
        result = 1.0 - result * square / ((2 * n - 1) * (2 * n))
    return result


def geometric(first: int, last: int, step: int, steps: int) -> int:
    """Return the whole number nearest to first · (last / first)^(step / steps), for positive `first` and `last`.

    40 digits are enough: decimal's ln and exp are correctly rounded, and no root of a whole number is exactly halfway
    between two whole numbers.
    """
    share = DECIMAL.divide(step, steps)
    factor = DECIMAL.exp(DECIMAL.multiply(DECIMAL.ln(DECIMAL.divide(last, first)), share))
    return int(DECIMAL.to_integral_value(DECIMAL.multiply(first, factor)))
