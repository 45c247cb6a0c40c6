"""CPU kernel of `land`: one sweep over chunks that fit in the L2 cache.

Payloads are scattered into one chunk of sums; each sum is stored next to its number of senders. Without momentum and
rotation, slow weights change only at coordinates that some peer sent, so only these are updated. Landings of
feedback=local with a rotation, float32 weights and no momentum have a loop of their own, which passes over them once.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from outerloop.kernels.cpu.arrays import as_array, convert, float_row, sum_of_squares
from outerloop.kernels.cpu.compiled import compiled
from outerloop.kernels.cpu.eight_bit import read_residual_row, write_residual_row
from outerloop.kernels.cpu.land_steps import (
    add_sent,
    begin_row,
    continue_row,
    keep_row,
    land_local_row,
    mean_row,
    momentum_row,
    plain_row,
    rotate_sent,
    sent_row,
    subtract_rotated,
    subtract_rows,
    subtract_sent,
)
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
    is_local = how.unsent_share and negative is not None and momentum is None and fast.dtype == torch.float32
    weights, loop = (arrays[:2], land_local_rows) if is_local else (arrays, land_rows)
    parallel_rows(
        lambda first, last: loop(*weights, *payloads, how, first, last, squares_C.numpy()),
        rows.chunks,
        values=rows.count,
    )
    return squares_C.sum().view(1)


@compiled
def land_local_rows(slow, fast, position, value, sent, negative, current, how, first, last, squares):
    """Do the work of `land_rows` if values are rotated and unsent values stay in float32 weights, without momentum."""
    chunk, peers = how.chunk, 0 if how.by_senders else position.shape[0]
    sums, mean = np.zeros(2 * chunk, np.float32), np.empty(chunk, np.float32)
    own = np.empty(chunk, np.float32)
    for row in range(first, last):
        start, begin = row * chunk, row * how.k
        n = min(chunk, slow.size - start)
        end = begin + (how.k * n + chunk - 1) // chunk
        for peer in range(position.shape[0]):
            add_sent(position, value, peer, begin, end, sums)
        mean_row(sums, peers, mean[:n])
        rotate_chunk(mean[:n], negative, start, True)
        rotate_sent(position[how.own, begin:end], sent[begin:end], negative, start, own[:n])
        row_current = current[start : start + n]
        land_local_row(slow[start : start + n], fast[start : start + n], row_current, mean[:n], own[:n], how)
        squares[row] = sum_of_squares(mean, n)


@compiled
def land_rows(
    slow, fast, residual, scale, momentum, position, value, sent, negative, current, how, first, last, squares
):
    """Land chunks first .. last - 1: update weights, residual and momentum. Set squares[row] to Σ mean² of a chunk."""
    chunk, own, beta, lr, mu = how.chunk, how.own, np.float32(how.beta), np.float32(how.lr), np.float32(how.mu)
    sums, buffer, other = np.zeros(2 * chunk, np.float32), np.empty(chunk, np.float32), np.empty(chunk, np.float32)
    own_row = np.empty(chunk if negative.size else 0, np.float32)
    share, peers = np.float32(how.unsent_share), 0 if how.by_senders else position.shape[0]
    for row in range(first, last):
        start, begin = row * chunk, row * how.k
        n = min(chunk, slow.size - start)
        end = begin + (how.k * n + chunk - 1) // chunk
        row_slow, row_fast, row_unsent = slow[start : start + n], fast[start : start + n], buffer[:n]
        if residual.size:
            row_unsent = read_residual_row(residual, scale, start, n, buffer)
            keep_row(row_slow, float_row(fast, start, n, other), row_unsent, beta)
        elif share:
            subtract_rows(row_slow, float_row(fast, start, n, other), row_unsent)
        if residual.size or share:
            own_position, own_value = position[own, begin:end], sent[begin:end]
            if negative.size:
                subtract_rotated(row_unsent, own_position, own_value, negative, start, own_row[:n])
            else:
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
            if momentum.size:
                momentum_row(row_slow, momentum[start : start + n], mean, lr, mu, how.nesterov)
            else:
                plain_row(row_slow, mean, lr)
            squares[row] = sum_of_squares(mean, n)
        else:
            square = 0.0
            for peer in range(position.shape[0]):
                square += sent_row(row_slow, position, peer, begin, end, sums, peers, lr)
            squares[row] = square
        row_begun = row_slow
        if share:
            row_begun = row_unsent
            begin_row(row_slow, row_begun, share)
        if current.size:
            continue_row(current[start : start + n], row_fast, row_begun, other[:n])
        else:
            convert(row_begun, row_fast)
