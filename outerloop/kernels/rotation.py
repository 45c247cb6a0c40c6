"""The random rotation of chunks: signs and a Walsh-Hadamard transform, L = 4^n values at a time.

    rotate        y = √L · WHT(s ⊙ x / L)
    rotate_back   x = s ⊙ √L · WHT(y / L)

WHT(x)_i = Σ_j (-1)^popcount(i & j) x_j, in log2 L stages. Stage b replaces the values a and c, whose positions differ
in bit b only, by a + c and a - c; bit 0 is first. √L and L are powers of two, so only these additions round, each in
float32 and in this order: all machines compute the same bits. Dividing by L first keeps the sums within range; the
result is clamped to the range of float32. If one of the L values is NaN or infinity, all L results are NaN.

A chunk has L = `chunk` values. A shorter last chunk is cut into the largest blocks of 4^n values that fit, without
padding. The functions in this file are the reference implementation, in plain torch.
Sizes: N values, C chunks, L values per chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from outerloop.kernels.operator import operator

LARGEST = torch.finfo(torch.float32).max
VALUES_AT_ONCE = 1 << 18
"""Number of values transformed together: 1 MB of float32, which fits in the cache."""


@operator()
def rotate(x: Tensor, negative: Tensor, chunk: int, back: bool) -> Tensor:
    """Rotate (N,) float32 values chunk by chunk, or rotate them back if `back`. Return a new tensor.

    negative: random signs, (ceil(N / 8),) uint8. Bit i % 8 of byte i // 8 is 1 if the sign of value i is -1.
    """
    sign_N = signs_of(negative, x.numel())
    y_N = x if back else x * sign_N
    y_N = torch.cat([x.new_zeros(0), *(hadamard_rows(block_CL).reshape(-1) for block_CL in blocks(y_N, chunk))])
    return y_N * sign_N if back else y_N


@rotate.fake
def _(x: Tensor, negative: Tensor, chunk: int, back: bool) -> Tensor:
    return torch.empty_like(x)


def random_signs(count: int, seed: int) -> Tensor:
    """Return `count` random signs as bits, (ceil(count / 8),) uint8: the output of Philox4x64, lowest bit first."""
    words = np.random.Philox(key=seed).random_raw(-(-count // 64)).astype("<u8")
    return torch.from_numpy(words.view(np.uint8)[: -(-count // 8)].copy())


def signs_of(negative: Tensor, count: int) -> Tensor:
    """Convert the sign bits of `count` values to factors: +1 or -1 in float32, -1 where the bit is 1."""
    bits = negative[:, None] >> torch.arange(8, dtype=torch.uint8, device=negative.device) & 1
    return 1.0 - 2.0 * bits.reshape(-1)[:count].float()


def blocks(x_N: Tensor, chunk: int) -> Iterator[Tensor]:
    """Yield x, in order, as matrices whose rows have 4^n values: full chunks, then blocks of a shorter last chunk."""
    full = len(x_N) - len(x_N) % chunk
    if full:
        yield from x_N[:full].view(-1, chunk).split(max(1, VALUES_AT_ONCE // chunk))
    while full < len(x_N):
        length = 4 ** int(math.log2(len(x_N) - full) / 2)
        yield x_N[full : full + length].view(1, length)
        full += length


def hadamard_rows(x_CL: Tensor) -> Tensor:
    """Return the orthonormal Walsh-Hadamard transform of rows of L = 4^n values, clamped to the range of float32."""
    chunks, length = x_CL.shape
    y_LC = (x_CL / length).T.contiguous()
    for stage in range(length.bit_length() - 1):
        a, b = y_LC.view(-1, 2, chunks << stage).unbind(1)
        y_LC = torch.stack([a + b, a - b], dim=1)
    y_CL = (y_LC.view(length, chunks).T * math.isqrt(length)).clamp(-LARGEST, LARGEST)
    return y_CL.where(x_CL.isfinite().all(dim=1, keepdim=True), torch.nan)
