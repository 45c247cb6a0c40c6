"""`land` for the CPU: one sweep, a chunk at a time in the first-level cache.

Payloads are scattered into one chunk of sums; without momentum only coordinates that somebody sent move, so nothing
else of the slow weights is computed, and the fast weights are a copy.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from outerloop.kernels.arrays import array_of, ask_for, convert, float_row, sum_of_squares
from outerloop.kernels.compiled import compiled
from outerloop.kernels.cpu_eight_bit import held_row, hold_row
from outerloop.kernels.land import Landing, land
from outerloop.kernels.rows import Rows
from outerloop.kernels.threads import share


@land.kernel("CPU")
def land_cpu(
    slow: Tensor,
    fast: Tensor,
    residual: Tensor | None,
    scale: Tensor | None,
    momentum: Tensor | None,
    position: Tensor,
    value: Tensor,
    sent: Tensor | None,
    how: Landing,
) -> Tensor:
    """See `land`."""
    rows = Rows(slow.numel(), how.chunk, how.k)
    squares_C = torch.zeros(rows.chunks, dtype=torch.float64)
    arrays = [array_of(x) for x in (slow, fast, residual if how.own >= 0 else None, scale, momentum)]
    payloads = [position.numpy(), value.numpy(), array_of(value[max(how.own, 0)] if sent is None else sent)]
    share(
        lambda first, last: land_rows(*arrays, *payloads, how, first, last, squares_C.numpy()),
        rows.chunks,
        values=rows.count,
    )
    return squares_C.sum().view(1)


@compiled
def land_rows(slow, fast, residual, scale, momentum, position, value, sent, how, first, last, squares):
    """Chunks first .. last."""
    chunk, own, beta, lr, mu = how.chunk, how.own, np.float32(how.beta), np.float32(how.lr), np.float32(how.mu)
    total, senders, other = np.zeros(chunk, np.float32), np.zeros(chunk, np.float32), np.empty(chunk, np.float32)
    buffer = np.empty(chunk, np.float32)
    sent_by, inputs = position.shape[0], (slow, fast, residual)
    peers = 0 if how.by_senders else sent_by
    for row in range(first, last):
        start, begin, ahead = row * chunk, row * how.k, row * chunk + chunk
        n = min(chunk, slow.size - start)
        end = begin + (how.k * n + chunk - 1) // chunk
        row_slow, row_fast = slow[start : start + n], fast[start : start + n]
        if residual.size:
            held = held_row(residual, scale, start, n, buffer)
            keep_row(row_slow, float_row(fast, start, n, other), held, beta, position[own, begin:end], sent[begin:end])
            hold_row(held, residual, scale, start)
        for peer in range(sent_by):  # their sums are in the cache, so that the next chunk can come
            ask_for(inputs, ahead + chunk * peer // sent_by, ahead + chunk * (peer + 1) // sent_by)
            add_sent(position, value, peer, begin, end, total, senders)
        if momentum.size:
            row_momentum = momentum[start : start + n]
            squares[row] = momentum_row(row_slow, row_momentum, total, senders, peers, lr, mu, how.nesterov)
        else:
            square = 0.0
            for peer in range(sent_by):
                square += sent_row(row_slow, position, peer, begin, end, total, senders, peers, lr)
            squares[row] = square
        convert(row_slow, row_fast)


@compiled
def keep_row(slow, fast, residual, beta, position, value):
    """e ← (slow − fast) + e · β − own v."""
    for i in range(slow.size):
        residual[i] = (slow[i] - fast[i]) + residual[i] * beta
    for j in range(position.size):
        residual[np.uint32(position[j])] -= value[j]


@compiled
def add_sent(position, value, peer, begin, end, total, senders):
    """One peer's kept values of one chunk into the sums."""
    for j in range(begin, end):
        i = np.uint32(position[peer, j])
        total[i] += value[peer, j]
        senders[i] += np.float32(value[peer, j] != 0)


@compiled
def sent_row(slow, position, peer, begin, end, total, senders, peers, lr):
    """slow ← slow − ḡ · η where this peer sent; sums go back to zero, so no coordinate is taken twice. Σ ḡ²."""
    square = 0.0
    for j in range(begin, end):
        i = np.uint32(position[peer, j])
        mean = total[i] / (np.float32(peers) if peers else max(senders[i], np.float32(1)))
        slow[i] = slow[i] - mean * lr
        square += np.float64(mean) * np.float64(mean)
        total[i] = 0.0
        senders[i] = 0.0
    return square


@compiled
def momentum_row(slow, momentum, total, senders, peers, lr, mu, nesterov):
    """b ← b · μ + ḡ, and the step along it; sums go back to zero. Σ ḡ²."""
    for i in range(slow.size):
        total[i] = total[i] / (np.float32(peers) if peers else max(senders[i], np.float32(1)))
        b = momentum[i] * mu + total[i]
        momentum[i] = b
        step = total[i] + b * mu if nesterov else b
        slow[i] = slow[i] - step * lr
    square = sum_of_squares(total, slow.size)
    total[: slow.size] = 0.0
    senders[: slow.size] = 0.0
    return square
