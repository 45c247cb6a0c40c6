"""`select` for the CPU: one sweep over slow, fast and residual, a chunk at a time in the first-level cache.

The k-th largest of L / 16 group maxima is a lower bound of the k-th largest value: what reaches it, about 1.15 k
candidates of a random chunk, is all that exact selection has to look at. Magnitudes are compared as the integers that
their bits are, so a NaN counts as larger than everything.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from outerloop.kernels.arrays import array_of, load
from outerloop.kernels.rows import Rows
from outerloop.kernels.select import select
from outerloop.kernels.threads import share

GROUP = 16


@select.register_kernel("cpu")
def select_cpu(
    slow: Tensor, fast: Tensor | None, residual: Tensor | None, beta: float, chunk: int, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """See `select`."""
    rows = Rows(slow.numel(), chunk, k)
    position_M, value_M = torch.empty(rows.kept, dtype=torch.int32), torch.empty(rows.kept)
    squares_C = torch.zeros(rows.rows, dtype=torch.float64)
    inputs = [array_of(slow), array_of(fast), array_of(residual), np.float32(beta), chunk, k]
    outputs = [position_M.numpy(), value_M.numpy(), squares_C.numpy()]
    share(lambda first, last: select_rows(*inputs, first, last, *outputs), rows.rows, values=rows.count)
    return position_M, value_M, squares_C.sum().view(1)


@njit(nogil=True, cache=True)
def select_rows(slow, fast, residual, beta, chunk, k, first, last, position, value, squares):  # type: ignore[no-untyped-def]
    """Chunks first .. last."""
    x, other = np.empty(chunk, np.float32), np.empty(chunk, np.float32)
    size, best = np.empty(chunk, np.int32), np.empty(chunk, np.int32)
    near, near_size = np.empty(chunk, np.int32), np.empty(chunk, np.int32)
    for row in range(first, last):
        start = row * chunk
        n = min(chunk, slow.size - start)
        kept = (k * n + chunk - 1) // chunk
        squares[row] = offer_row(slow, fast, residual, beta, start, n, x, other)
        bits = x.view(np.int32)
        for i in range(n):
            size[i] = bits[i] & 0x7FFFFFFF
        bound = lower_bound(size, n, kept, best)
        m = 0
        for i in range(n):
            near[m] = i
            m += size[i] >= bound
        for j in range(m):
            near_size[j] = size[near[j]]
        border = kth_largest(near_size, m, kept)
        room = kept - count_from(near_size, m, np.int64(border) + 1)
        at = row * k
        for j in range(m):
            if near_size[j] > border or (near_size[j] == border and room > 0):
                room -= near_size[j] == border
                position[at] = near[j]
                value[at] = x[near[j]]
                at += 1


@njit(nogil=True, cache=True)
def offer_row(slow, fast, residual, beta, start, n, x, other):  # type: ignore[no-untyped-def]
    """x = (slow − fast) + residual · β of one chunk; returns the sum of (slow − fast)²."""
    if fast.size:
        load(fast, start, n, other)
        for i in range(n):
            x[i] = slow[start + i] - other[i]
    else:
        for i in range(n):
            x[i] = slow[start + i]
    square = 0.0
    for lane in range(0, n, 64):
        part = np.float64(0.0)
        for i in range(lane, min(n, lane + 64)):
            part += np.float64(x[i]) * np.float64(x[i])
        square += part
    if residual.size:
        for i in range(n):
            x[i] = x[i] + residual[start + i] * beta
    return square


@njit(nogil=True, cache=True)
def lower_bound(size, n, kept, best):  # type: ignore[no-untyped-def]
    """A magnitude that at least `kept` of n reach: the kept-th largest of the maxima of n / 16 interleaved groups."""
    groups = n // GROUP
    if groups < 2 * kept:
        return np.int32(0)
    for j in range(groups):
        best[j] = size[j]
    for g in range(1, GROUP):
        for j in range(groups):
            best[j] = max(best[j], size[g * groups + j])
    return kth_largest(best, groups, kept)


@njit(nogil=True, cache=True)
def kth_largest(size, n, k):  # type: ignore[no-untyped-def]
    """By bisection: a number that exactly k of n reach, or, with ties, the k-th largest itself. k = 0 .. n."""
    top = np.int64(0)
    for i in range(n):
        top = max(top, np.int64(size[i]))
    low, high, reached = np.int64(0), top + 1, n
    while high - low > 1 and reached != k:
        middle = low + (high - low) // 2
        count = count_from(size, n, middle)
        if count >= k:
            low, reached = middle, count
        else:
            high = middle
    return np.int32(low)


@njit(nogil=True, cache=True)
def count_from(size, n, border):  # type: ignore[no-untyped-def]
    """How many of n are at least `border`; a border above the int32 range has none."""
    if border > 0x7FFFFFFF:
        return 0
    edge, count = np.int32(border), 0
    for i in range(n):
        count += size[i] >= edge
    return count
