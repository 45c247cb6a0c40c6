"""Triton kernel of `select`: one program per chunk, which it reads once and holds in registers.

Magnitudes are compared by their bits, as integers, so NaN counts as larger than all numbers. The threshold is found by
bisection over these integers. Bisection starts at a number that at least k values of a chunk reach: the chunk is
divided into at least k groups, and the number is the smallest of the group maxima.

Bytes per value: slow 4, fast 4 (2 in bfloat16), residual 4 (1 in 8 bits), read once; 8 k / L written. No full-size
tensor is written.

Sizes: N values, C chunks, L values per chunk, M kept values in total.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outerloop.kernels.select import Rows, Selection, select
from outerloop.kernels.triton.blocks import LARGEST_CHUNK, block_size, load_float, num_warps, spans, stored
from outerloop.kernels.triton.eight_bit import load_residual

EACH = 8
"""Number of values per thread. With this number, a thread uses 64 registers, so that two chunks of 4096 values share a
multiprocessor of an H100 or H200.
"""


@select.kernel("CUDA")
def select_triton(
    slow: Tensor,
    fast: Tensor | None,
    residual: Tensor | None,
    scale: Tensor | None,
    negative: Tensor | None,
    how: Selection,
) -> tuple[Tensor, Tensor, Tensor]:
    """Implement `select` on the GPU. Fall back to the reference implementation for rotated values and long chunks."""
    if how.chunk > LARGEST_CHUNK or negative is not None:
        return select.definition(slow, fast, residual, scale, negative, how)
    rows = Rows(slow.numel(), how.chunk, how.k)
    position_M = slow.new_empty(rows.kept, dtype=torch.int32)
    value_M, squares_C = slow.new_empty(rows.kept), slow.new_zeros(rows.chunks, dtype=torch.float64)
    tensors = [slow, stored(fast), residual, scale, position_M, value_M, squares_C]
    block = block_size(how.chunk)
    with torch.cuda.device_of(slow):
        for first, last, length, kept in spans(rows):
            select_chunk[(last - first,)](
                *tensors,
                how.beta,
                first,
                length,
                kept,
                how.chunk,
                how.k,
                GROUPS=block_size(kept),
                BLOCK=block,
                num_warps=num_warps(block, EACH),
                enable_fp_fusion=False,
            )
    return position_M, value_M, squares_C.sum().view(1)


@triton.jit(do_not_specialize=["first"])
def select_chunk(
    slow,
    fast,
    residual,
    scale,
    position,
    value,
    squares,
    beta,
    first,
    length,
    kept,
    chunk,
    k,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Select the values to keep in row first + program. Store them, their ascending positions, and Σ (slow − fast)²."""
    row = tl.program_id(0).to(tl.int64) + first
    lane = tl.arange(0, BLOCK)
    mask = lane < length
    start = row * chunk
    x = load_float(slow + start + lane, mask)
    if fast is not None:
        x = x - load_float(fast + start + lane, mask)
    tl.store(squares + row, tl.sum(x.to(tl.float64) * x.to(tl.float64), 0))
    if residual is not None:
        x = x + load_residual(residual, scale, start + lane, mask) * beta
    size = tl.where(mask, x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, -1)
    border, reached = kth_largest(size, kept, GROUPS, BLOCK)
    keep = size >= border
    if reached != kept:  # several values equal the k-th largest: keep those at the lowest positions
        equal = size == border
        room = kept - count_from(size, border + 1)
        keep = (size > border) | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= room))
    at = row * k + tl.cumsum(keep.to(tl.int32), 0) - 1
    tl.store(position + at, lane, mask=keep)
    tl.store(value + at, x, mask=keep)


@triton.jit
def kth_largest(size, k, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    """Return a bound that exactly k values reach (or more than k, with ties), and the number of values that reach it.

    Requires GROUPS >= k.
    """
    best = tl.max(tl.reshape(size, (GROUPS, BLOCK // GROUPS)), 1)
    low, high = tl.maximum(tl.min(best, 0), 0), tl.max(size, 0)
    reached = count_from(size, low)
    while (low < high) & (reached != k):
        middle = high - (high - low) // 2
        count = count_from(size, middle)
        enough = count >= k
        low, reached = tl.where(enough, middle, low), tl.where(enough, count, reached)
        high = tl.where(enough, high, middle - 1)
    return low, reached


@triton.jit
def count_from(size, border):
    """Return the number of values that are at least `border`."""
    return tl.sum((size >= border).to(tl.int32), 0)
