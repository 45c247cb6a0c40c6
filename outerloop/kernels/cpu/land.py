"""`land` for the CPU: one sweep over chunks that fit in the second-level cache.

Payloads are scattered into one chunk of sums; each sum is stored next to the number of its senders. Without momentum,
only coordinates that a peer sent change, so only these slow weights are computed. The fast weights become a copy of the
slow weights.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from outerloop.kernels.cpu.arrays import add_counted, as_array, convert, float_row, sum_of_squares
from outerloop.kernels.cpu.compiled import compiled
from outerloop.kernels.cpu.eight_bit import read_residual_row, write_residual_row
from outerloop.kernels.land import Landing, land
from outerloop.kernels.select import Rows
from outerloop.kernels.threads import parallel_rows


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
    """Implement `land`."""
    rows = Rows(slow.numel(), how.chunk, how.k)
    squares_C = torch.zeros(rows.chunks, dtype=torch.float64)
    arrays = [as_array(x) for x in (slow, fast, residual if how.own >= 0 else None, scale, momentum)]
    payloads = [position.numpy(), value.numpy(), as_array(value[max(how.own, 0)] if sent is None else sent)]
    parallel_rows(
        lambda first, last: land_rows(*arrays, *payloads, how, first, last, squares_C.numpy()),
        rows.chunks,
        values=rows.count,
    )
    return squares_C.sum().view(1)


@compiled
def land_rows(slow, fast, residual, scale, momentum, position, value, sent, how, first, last, squares):
    """Land chunks first .. last - 1."""
    chunk, own, beta, lr, mu = how.chunk, how.own, np.float32(how.beta), np.float32(how.lr), np.float32(how.mu)
    sums, buffer, other = np.zeros(2 * chunk, np.float32), np.empty(chunk, np.float32), np.empty(chunk, np.float32)
    peers = 0 if how.by_senders else position.shape[0]
    for row in range(first, last):
        start, begin = row * chunk, row * how.k
        n = min(chunk, slow.size - start)
        end = begin + (how.k * n + chunk - 1) // chunk
        row_slow, row_fast = slow[start : start + n], fast[start : start + n]
        if residual.size:
            row_residual = read_residual_row(residual, scale, start, n, buffer)
            keep_row(
                row_slow,
                float_row(fast, start, n, other),
                row_residual,
                beta,
                position[own, begin:end],
                sent[begin:end],
            )
            write_residual_row(row_residual, residual, scale, start)
        for peer in range(position.shape[0]):
            add_sent(position, value, peer, begin, end, sums)
        if momentum.size:
            row_momentum = momentum[start : start + n]
            squares[row] = momentum_row(row_slow, row_momentum, sums, peers, lr, mu, how.nesterov, other)
        else:
            square = 0.0
            for peer in range(position.shape[0]):
                square += sent_row(row_slow, position, peer, begin, end, sums, peers, lr)
            squares[row] = square
        convert(row_slow, row_fast)


@compiled
def keep_row(slow, fast, residual, beta, position, value):
    """Compute e ← (slow − fast) + e · β − v, where v are the values that this peer sent."""
    for i in range(slow.size):
        residual[i] = (slow[i] - fast[i]) + residual[i] * beta
    for j in range(position.size):
        residual[np.uint32(position[j])] -= value[j]


@compiled
def add_sent(position, value, peer, begin, end, sums):
    """Add one peer's kept values of one chunk to the sums, and increment the count of senders where they are not 0."""
    for j in range(begin, end):
        add_counted(sums, np.uint32(position[peer, j]), value[peer, j])


@compiled
def mean_at(sums, i, peers):
    """Return the mean of one coordinate: its sum divided by `peers`, or by the number of senders if `peers` is 0."""
    return sums[2 * i] / (np.float32(peers) if peers else max(sums[2 * i + 1], np.float32(1)))


@compiled
def sent_row(slow, position, peer, begin, end, sums, peers, lr):
    """Compute slow ← slow − ḡ · η at the coordinates that `peer` sent. Return Σ ḡ² over them.

    Sets `sums` to zero at these coordinates, so that a coordinate that several peers sent is updated only once.
    """
    square = 0.0
    for j in range(begin, end):
        i = np.uint32(position[peer, j])
        mean = mean_at(sums, i, peers)
        slow[i] = slow[i] - mean * lr
        square += np.float64(mean) * np.float64(mean)
        sums[2 * i] = sums[2 * i + 1] = 0.0
    return square


@compiled
def momentum_row(slow, momentum, sums, peers, lr, mu, nesterov, mean):
    """Compute b ← b · μ + ḡ and update the slow weights. Return Σ ḡ². Sets the sums to zero; `mean` is a buffer."""
    for i in range(slow.size):
        mean[i] = mean_at(sums, i, peers)
        b = momentum[i] * mu + mean[i]
        momentum[i] = b
        step = mean[i] + b * mu if nesterov else b
        slow[i] = slow[i] - step * lr
    sums[: 2 * slow.size] = 0.0
    return sum_of_squares(mean, slow.size)
