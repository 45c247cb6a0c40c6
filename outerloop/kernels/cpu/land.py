"""CPU kernel of `land`: one sweep over chunks that fit in the L2 cache.

Payloads are scattered into one chunk of sums; each sum is stored next to its number of senders. Without momentum and
rotation, slow weights change only at coordinates that some peer sent, so only these are updated. With a rotation and
unsent values in float32 weights, but without momentum, all weights change, and one loop reads and writes each of them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from outerloop.kernels.cpu.arrays import add_counted, as_array, convert, float_row, sum_of_squares
from outerloop.kernels.cpu.compiled import compiled
from outerloop.kernels.cpu.eight_bit import read_residual_row, write_residual_row
from outerloop.kernels.cpu.rotation import bits_array, rotate_chunk
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
    negative: Tensor | None,
    current: Tensor | None,
    how: Landing,
) -> Tensor:
    """Implement `land` on the CPU."""
    rows = Rows(slow.numel(), how.chunk, how.k)
    squares_C = torch.zeros(rows.chunks, dtype=torch.float64)
    arrays = [as_array(x) for x in (slow, fast, residual if how.own >= 0 else None, scale, momentum)]
    payloads = [position.numpy(), value.numpy(), as_array(value[max(how.own, 0)] if sent is None else sent)]
    payloads += [bits_array(negative), as_array(fast.new_empty(0) if current is None else current)]
    parallel_rows(
        lambda first, last: land_rows(*arrays, *payloads, how, first, last, squares_C.numpy()),
        rows.chunks,
        values=rows.count,
    )
    return squares_C.sum().view(1)


@compiled
def land_rows(
    slow, fast, residual, scale, momentum, position, value, sent, negative, current, how, first, last, squares
):
    """Land chunks first .. last - 1: update weights, residual and momentum. Set squares[row] to Σ mean² of a chunk."""
    chunk, own, beta, lr, mu = how.chunk, how.own, np.float32(how.beta), np.float32(how.lr), np.float32(how.mu)
    sums, buffer, other = np.zeros(2 * chunk, np.float32), np.empty(chunk, np.float32), np.empty(chunk, np.float32)
    own_row = np.empty(chunk if negative.size else 0, np.float32)
    share, peers = np.float32(how.unsent_share), 0 if how.by_senders else position.shape[0]
    together = share > 0 and negative.size > 0 and momentum.size == 0 and fast.itemsize == own_row.itemsize
    for row in range(first, last):
        start, begin = row * chunk, row * how.k
        n = min(chunk, slow.size - start)
        end = begin + (how.k * n + chunk - 1) // chunk
        row_slow, row_fast, row_unsent = slow[start : start + n], fast[start : start + n], buffer[:n]
        if residual.size:
            row_unsent = read_residual_row(residual, scale, start, n, buffer)
            keep_row(row_slow, float_row(fast, start, n, other), row_unsent, beta)
        elif share and not together:
            subtract_rows(row_slow, float_row(fast, start, n, other), row_unsent)
        if residual.size or share:
            own_position, own_value = position[own, begin:end], sent[begin:end]
            if negative.size:
                rotate_sent(own_position, own_value, negative, start, own_row[:n])
            if negative.size and not together:
                subtract_rows(row_unsent, own_row[:n], row_unsent)
            elif not negative.size:
                subtract_sent(row_unsent, own_position, own_value)
        if residual.size:
            write_residual_row(row_unsent, residual, scale, start)
        for peer in range(position.shape[0]):
            add_sent(position, value, peer, begin, end, sums)
        if momentum.size or negative.size:
            mean = other[:n]
            mean_row(sums, peers, mean)
            if negative.size:
                rotate_chunk(mean, negative, start, True)
            if together:
                land_row(row_slow, row_fast, current[start : start + n], mean, own_row[:n], lr, share)
            elif momentum.size:
                momentum_row(row_slow, momentum[start : start + n], mean, lr, mu, how.nesterov)
            else:
                plain_row(row_slow, mean, lr)
            squares[row] = sum_of_squares(mean, n)
        else:
            square = 0.0
            for peer in range(position.shape[0]):
                square += sent_row(row_slow, position, peer, begin, end, sums, peers, lr)
            squares[row] = square
        if together:
            continue
        row_begun = row_slow
        if share:
            row_begun = row_unsent
            begin_row(row_slow, row_begun, share)
        if current.size:
            continue_row(current[start : start + n], row_fast, row_begun, other[:n])
        else:
            convert(row_begun, row_fast)


@compiled
def keep_row(slow, fast, residual, beta):
    """Compute residual ← (slow − fast) + residual · beta."""
    for i in range(slow.size):
        residual[i] = (slow[i] - fast[i]) + residual[i] * beta


@compiled
def subtract_rows(x, y, difference):
    """Compute difference ← x − y."""
    for i in range(x.size):
        difference[i] = x[i] - y[i]


@compiled
def subtract_sent(residual, position, value):
    """Subtract the values that this peer sent from the residual of one chunk."""
    for j in range(position.size):
        residual[np.uint32(position[j])] -= value[j]


@compiled
def rotate_sent(position, value, negative, start, own):
    """Set `own` to the values that this peer sent in one chunk, rotated back."""
    own[:] = np.float32(0)
    for j in range(position.size):
        own[np.uint32(position[j])] = value[j]
    rotate_chunk(own, negative, start, True)


@compiled
def land_row(slow, fast, current, mean, own, lr, share):
    """Update the slow weights of one chunk, and its fast weights with unsent values, as the other loops do one by one.

    `current`, which may be empty, and `fast` must be float32.
    """
    if current.size:
        for i in range(slow.size):
            unsent = (slow[i] - fast[i]) - own[i]
            slow[i] = slow[i] - mean[i] * lr
            current[i] = (current[i] - fast[i]) + (unsent * -share + slow[i])
    else:
        for i in range(slow.size):
            unsent = (slow[i] - fast[i]) - own[i]
            slow[i] = slow[i] - mean[i] * lr
            fast[i] = unsent * -share + slow[i]


@compiled
def add_sent(position, value, peer, begin, end, sums):
    """Add one peer's values of one chunk to the sums. Where a value is not 0, increment the number of senders."""
    for j in range(begin, end):
        add_counted(sums, np.uint32(position[peer, j]), value[peer, j])


@compiled
def mean_at(sums, i, peers):
    """Return the mean at coordinate i: its sum divided by `peers`, or by its number of senders if `peers` is 0."""
    return sums[2 * i] / (np.float32(peers) if peers else max(sums[2 * i + 1], np.float32(1)))


@compiled
def sent_row(slow, position, peer, begin, end, sums, peers, lr):
    """Compute slow ← slow − mean · lr at the coordinates that `peer` sent. Return Σ mean² over them.

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
def mean_row(sums, peers, mean):
    """Set `mean` to the mean at every coordinate of a chunk, then set the sums to zero."""
    for i in range(mean.size):
        mean[i] = mean_at(sums, i, peers)
    sums[: 2 * mean.size] = 0.0


@compiled
def momentum_row(slow, momentum, mean, lr, mu, nesterov):
    """Compute momentum ← momentum · mu + mean, then take a step of torch's SGD on the slow weights."""
    for i in range(slow.size):
        b = momentum[i] * mu + mean[i]
        momentum[i] = b
        step = mean[i] + b * mu if nesterov else b
        slow[i] = slow[i] - step * lr


@compiled
def plain_row(slow, mean, lr):
    """Compute slow ← slow − mean · lr."""
    for i in range(slow.size):
        slow[i] = slow[i] - mean[i] * lr


@compiled
def begin_row(slow, unsent, share):
    """Compute unsent ← unsent · (−share) + slow, the fast weights from which inner steps continue."""
    for i in range(slow.size):
        unsent[i] = unsent[i] * -share + slow[i]


@compiled
def continue_row(current, fast, begun, buffer):
    """Compute current ← (current − fast) + begun. Each result is rounded to the dtype of `current`."""
    if current.itemsize == buffer.itemsize:
        for i in range(current.size):
            current[i] = (current[i] - fast[i]) + begun[i]
    else:
        widened = np.empty(current.size, np.float32)
        subtract_rows(float_row(current, 0, current.size, widened), float_row(fast, 0, current.size, buffer), buffer)
        convert(buffer, current)
        add_rows(float_row(current, 0, current.size, widened), begun, buffer)
        convert(buffer, current)


@compiled
def add_rows(x, y, total):
    """Compute total ← x + y."""
    for i in range(x.size):
        total[i] = x[i] + y[i]
