"""`land` for the CPU: one sweep, a chunk at a time in the first-level cache.

Payloads are scattered into one chunk of sums; without momentum only coordinates that somebody sent move, so nothing
else of the slow weights is computed, and the fast weights are a copy.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from outerloop.kernels.arrays import array_of, load, store
from outerloop.kernels.land import land
from outerloop.kernels.rows import Rows
from outerloop.kernels.threads import share


@land.register_kernel("cpu")
def land_cpu(
    slow: Tensor,
    fast: Tensor,
    residual: Tensor | None,
    momentum: Tensor | None,
    position: Tensor,
    value: Tensor,
    own: int,
    beta: float,
    chunk: int,
    k: int,
    by_senders: bool,
    lr: float,
    mu: float,
    nesterov: bool,
) -> Tensor:
    """See `land`."""
    rows = Rows(slow.numel(), chunk, k)
    squares_C = torch.zeros(rows.rows, dtype=torch.float64)
    arrays = [array_of(x) for x in (slow, fast, residual if own >= 0 else None, momentum)]
    sent = [position.numpy(), value.numpy(), own, by_senders]
    numbers = [np.float32(beta), np.float32(lr), np.float32(mu), nesterov, chunk, k]
    share(
        lambda first, last: land_rows(*arrays, *sent, *numbers, first, last, squares_C.numpy()),
        rows.rows,
        values=rows.count,
    )
    return squares_C.sum().view(1)


@njit(nogil=True, cache=True)
def land_rows(  # type: ignore[no-untyped-def]
    slow, fast, residual, momentum, position, value, own, by_senders, beta, lr, mu, nesterov, chunk, k, first, last, squares
):
    """Chunks first .. last."""
    mean, senders = np.zeros(chunk, np.float32), np.zeros(chunk, np.float32)
    row_slow = np.empty(chunk, np.float32)
    for row in range(first, last):
        start = row * chunk
        n = min(chunk, slow.size - start)
        begin = row * k
        end = begin + (k * n + chunk - 1) // chunk
        if residual.size:
            keep_row(slow, fast, residual, beta, position, value, own, start, n, begin, end, row_slow)
        squares[row] = mean_row(position, value, by_senders, begin, end, mean, senders)
        for i in range(n):
            row_slow[i] = slow[start + i]
        if momentum.size:
            momentum_row(row_slow, momentum, mean, lr, mu, nesterov, start, n)
        else:
            sent_row(row_slow, position, mean, lr, begin, end)
        for i in range(n):
            slow[start + i] = row_slow[i]
        store(row_slow, n, fast, start)
        for peer in range(position.shape[0]):
            for j in range(begin, end):
                mean[position[peer, j]] = 0.0
                senders[position[peer, j]] = 0.0


@njit(nogil=True, cache=True)
def keep_row(slow, fast, residual, beta, position, value, own, start, n, begin, end, other):  # type: ignore[no-untyped-def]
    """e ← (slow − fast) + e · β − own v."""
    load(fast, start, n, other)
    for i in range(n):
        residual[start + i] = (slow[start + i] - other[i]) + residual[start + i] * beta
    for j in range(begin, end):
        residual[start + position[own, j]] -= value[own, j]


@njit(nogil=True, cache=True)
def mean_row(position, value, by_senders, begin, end, mean, senders):  # type: ignore[no-untyped-def]
    """ḡ of one chunk into the zeroed `mean`; returns the sum of ḡ²."""
    peers = position.shape[0]
    for peer in range(peers):
        for j in range(begin, end):
            mean[position[peer, j]] += value[peer, j]
            senders[position[peer, j]] += np.float32(value[peer, j] != 0)
    square = 0.0
    for peer in range(peers):
        for j in range(begin, end):
            i = position[peer, j]
            if senders[i] >= 0:
                mean[i] = mean[i] / (max(senders[i], np.float32(1)) if by_senders else np.float32(peers))
                square += np.float64(mean[i]) * np.float64(mean[i])
                senders[i] = -1
    return square


@njit(nogil=True, cache=True)
def momentum_row(slow, momentum, mean, lr, mu, nesterov, start, n):  # type: ignore[no-untyped-def]
    """b ← b · μ + ḡ, and the step along it."""
    for i in range(n):
        b = momentum[start + i] * mu + mean[i]
        momentum[start + i] = b
        step = mean[i] + b * mu if nesterov else b
        slow[i] = slow[i] - step * lr


@njit(nogil=True, cache=True)
def sent_row(slow, position, mean, lr, begin, end):  # type: ignore[no-untyped-def]
    """slow ← slow − ḡ · η where somebody sent; each coordinate once, since its ḡ is then set to zero."""
    for peer in range(position.shape[0]):
        for j in range(begin, end):
            i = position[peer, j]
            slow[i] = slow[i] - mean[i] * lr
            mean[i] = 0.0
