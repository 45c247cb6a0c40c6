"""The steps of a landing for one chunk: compiled loops that the kernel of `land` combines."""

from __future__ import annotations

import numpy as np

from outerloop.kernels.cpu.arrays import add_counted, convert, float_row
from outerloop.kernels.cpu.compiled import compiled
from outerloop.kernels.cpu.rotation import rotate_chunk


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
def subtract_rotated(residual, position, value, negative, start, own):
    """Undo the rotation of the values that this peer sent, then subtract them from the residual. `own`: a buffer."""
    rotate_sent(position, value, negative, start, own)
    for i in range(residual.size):
        residual[i] -= own[i]


@compiled
def rotate_sent(position, value, negative, start, own):
    """Set `own` to the values that this peer sent in one chunk, rotated back."""
    own[:] = np.float32(0)
    for j in range(position.size):
        own[np.uint32(position[j])] = value[j]
    rotate_chunk(own, negative, start, True)


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


@compiled
def land_local_row(slow, fast, current, mean, own, how):
    """Update the slow weights of one chunk, and the weights from which inner steps continue.

    These are `current`, or `fast` if `current` is empty. `own`: the values that this peer sent, rotated back.
    """
    lr, share = np.float32(how.lr), np.float32(how.unsent_share)
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
