"""`select` for the CPU: one sweep over slow, fast and residual, a chunk at a time in the first-level cache.

The k-th largest of L / 16 group maxima is a lower bound of the k-th largest value: what reaches it, about 1.2 k
candidates of a random chunk, is all that exact selection has to look at. Magnitudes are compared as the integers that
their bits are, so a NaN counts as larger than everything.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from outerloop.kernels.arrays import LINE, array_of, float_row, prefetch
from outerloop.kernels.bit_loops import ONE, reaching, trailing_zeros
from outerloop.kernels.compiled import compiled
from outerloop.kernels.cpu_eight_bit import held_row
from outerloop.kernels.rows import Rows
from outerloop.kernels.select import select
from outerloop.kernels.threads import share

GROUP = 16
WORD = 64
"""Magnitudes that are held against a bound together: a bit each."""


@select.kernel("CPU")
def select_cpu(
    slow: Tensor, fast: Tensor | None, residual: Tensor | None, scale: Tensor | None, beta: float, chunk: int, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """See `select`."""
    rows = Rows(slow.numel(), chunk, k)
    position_M, value_M = torch.empty(rows.kept, dtype=torch.int32), torch.empty(rows.kept)
    squares_C = torch.zeros(rows.chunks, dtype=torch.float64)
    inputs = [*map(array_of, (slow, fast, residual, scale)), np.float32(beta), chunk, k]
    outputs = [position_M.numpy(), value_M.numpy(), squares_C.numpy()]
    share(lambda first, last: select_rows(*inputs, first, last, *outputs), rows.chunks, values=rows.count)
    return position_M, value_M, squares_C.sum().view(1)


@compiled
def select_rows(slow, fast, residual, scale, beta, chunk, k, first, last, position, value, squares):
    """Chunks first .. last."""
    x, buffer = np.empty(chunk, np.float32), np.empty((2, chunk), np.float32)
    zero, nothing = np.zeros(chunk, np.float32), np.full(chunk, np.float32(-0.0))  # x − 0 is x, and x + (−0) is x
    size, best = np.empty(chunk, np.int32), np.empty(chunk, np.int32)
    near, near_size = np.empty(chunk + 1, np.int32), np.empty(chunk, np.int32)
    for row in range(first, last):
        start = row * chunk
        n = min(chunk, slow.size - start)
        kept = np.int32((k * n + chunk - 1) // chunk)
        row_fast = float_row(fast, start, n, buffer[0]) if fast.size else zero[:n]
        held = held_row(residual, scale, start, n, buffer[1]) if residual.size else nothing[:n]
        squares[row] = offer_row(slow[start : start + n], row_fast, held, beta, x)
        bits = x.view(np.int32)
        for i in range(n):
            size[i] = bits[i] & 0x7FFFFFFF
        bound = lower_bound(size, n, kept, best)
        m = find_near(size, n, bound, near, slow, fast, residual, start + chunk)
        for j in range(m):
            near_size[j] = size[near[j]]
        border = kth_largest(near_size, m, kept, 0)
        room = kept - count_above(near_size, m, border)
        at = row * k
        for j in range(m):
            if near_size[j] > border or (near_size[j] == border and room > 0):
                room -= near_size[j] == border
                position[at] = near[j]
                value[at] = x[near[j]]
                at += 1


@compiled
def offer_row(slow, fast, residual, beta, x):
    """x = (slow − fast) + residual · β of one chunk; returns the sum of (slow − fast)², in lanes that fill vectors."""
    lanes, whole, square = np.zeros(WORD, np.float32), slow.size // WORD * WORD, 0.0
    for block in range(0, whole, WORD):
        end = block + WORD
        row_slow, row_fast, held, row = slow[block:end], fast[block:end], residual[block:end], x[block:end]
        for lane in range(WORD):
            difference = row_slow[lane] - row_fast[lane]
            lanes[lane] += difference * difference
            row[lane] = difference + held[lane] * beta
    for lane in range(WORD):
        square += lanes[lane]
    for i in range(whole, slow.size):
        difference = slow[i] - fast[i]
        square += np.float64(difference) * np.float64(difference)
        x[i] = difference + residual[i] * beta
    return square


@compiled
def lower_bound(size, n, kept, best):
    """A magnitude that at least `kept` of n reach: so many of the maxima of n / 16 interleaved groups do, or an eighth
    more, which takes a third of the steps."""
    groups = n // GROUP
    if groups < 2 * kept:
        return np.int32(0)
    for j in range(groups):
        best[j] = size[j]
    for g in range(1, GROUP):
        group = size[g * groups : (g + 1) * groups]
        for j in range(groups):
            best[j] = max(best[j], group[j])
    return kth_largest(best, groups, kept, kept // 8)


@compiled
def find_near(size, n, bound, near, slow, fast, residual, ahead):
    """Where the magnitudes that reach `bound` are; returns how many.

    Nothing here waits for memory, so this is when the next chunk, at `ahead`, is asked for: 1.4 times the whole speed.
    """
    m = 0
    for block in range(0, n - WORD + 1, WORD):
        for line in range(ahead + block, min(ahead + block + WORD, slow.size), LINE):
            prefetch(slow, line)
            if fast.size:
                prefetch(fast, line)
            if residual.size:
                prefetch(residual, line)
        word = reaching(size, block, bound)
        while word:
            near[m] = block + trailing_zeros(word)
            m, word = m + 1, word & (word - ONE)
    for i in range(n // WORD * WORD, n):
        near[m] = i
        m += size[i] >= bound
    return m


@compiled
def kth_largest(size, n, k, spare):
    """By bisection: a number that k .. k + spare of n reach, or, with ties, the k-th largest itself. k = 0 .. n.

    Counts are int32, as the magnitudes are: the counting loop is where the time goes, and it fills a vector that way.
    """
    low, high, reached = np.int32(0x7FFFFFFF), np.int32(0), np.int32(n)
    for i in range(n):
        low, high = min(low, size[i]), max(high, size[i])
    while low < high and reached > k + spare:
        middle = np.int32(low + np.int32((np.int64(high) - low + 1) // 2))
        count = count_above(size, n, np.int32(middle - 1))
        if count >= k:
            low, reached = middle, count
        else:
            high = np.int32(middle - 1)
    return low


@compiled
def count_above(size, n, border):
    """How many of n are above `border`."""
    count = np.int32(0)
    for i in range(n):
        count += np.int32(size[i] > border)
    return count
