"""Triton kernel of `land`: a few programs per multiprocessor, each of which processes one chunk after another.

A program owns one row of sums (and one of sender counts) in global memory, small enough to stay in the cache. The
values of the peers are added to it one peer after another, in name order, with a barrier in between. The positions of
one peer are distinct, so no two threads write the same sum. Then one sweep updates the residual, the momentum, the slow
weights and the fast weights, and the sums that were written are set to zero for the next chunk. An 8-bit residual is
first computed in a separate float32 row, because its scales are known only after this peer's own values have been
subtracted.

Bytes per value, each read once and written once: slow 4, fast 4 (2 in bfloat16), residual 4 (1 in 8 bits), momentum 4.
This makes 32 in total, or 24 without momentum. Without a residual, the fast weights are only written. Payload:
8 P k / L, read once. The row of sums adds 4, read from the cache. N values, L chunk length, P peers, M kept values in
total.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outerloop.kernels.land import Landing, continue_from, land
from outerloop.kernels.select import Rows
from outerloop.kernels.triton.blocks import LARGEST_CHUNK, block_size, load_float, num_warps, spans, store_float, stored
from outerloop.kernels.triton.eight_bit import load_residual, store_residual

TILE = 1024
"""Number of values that a program holds in registers at a time, four per thread: 16 bytes of each tensor."""
WARPS = 40
"""Number of warps whose registers fit in a multiprocessor: a thread uses 48 registers on an H100 or H200."""


@land.kernel("CUDA")
def land_triton(
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
    """Implement `land` on the GPU. Fall back to the reference implementation for rotated values and long chunks.

    The fast weights after feedback=local, and those with inner steps since the launch, are computed in plain torch.
    """
    if how.chunk > LARGEST_CHUNK or negative is not None:
        return land.definition(slow, fast, residual, scale, momentum, position, value, sent, negative, current, how)
    if current is not None:
        current.sub_(fast)
        fast = fast.clone()  # because the kernel overwrites it
    if how.unsent_share:
        residual = torch.zeros_like(slow)  # for the unsent values
    rows = Rows(slow.numel(), how.chunk, how.k)
    position, value = position.contiguous(), value.contiguous()
    tile = min(block_size(how.chunk), TILE)
    warps = num_warps(tile, each=4)
    programs = min(rows.chunks, resident(slow, warps))
    total = slow.new_zeros(programs, how.chunk)
    senders = torch.zeros_like(total) if how.by_senders else None
    squares_C = slow.new_zeros(rows.chunks, dtype=torch.float64)
    weights = [slow, stored(fast), *((residual, scale) if how.own >= 0 else (None, None)), momentum]
    held = None if scale is None else torch.empty_like(total)
    own = max(how.own, 0)
    payloads = [position, value, position[own], value[own] if sent is None else sent.contiguous()]
    with torch.cuda.device_of(slow):
        for first, last, length, kept in spans(rows):
            land_chunks[(min(programs, last - first),)](
                *weights,
                *payloads,
                total,
                senders,
                held,
                squares_C,
                how.beta,
                how.lr,
                how.mu,
                float(len(value)),
                first,
                last,
                length,
                kept,
                how.chunk,
                how.k,
                rows.kept,
                len(value),
                NESTEROV=how.nesterov,
                TILE=tile,
                KEPT_TILE=min(block_size(kept), TILE),
                num_warps=warps,
                enable_fp_fusion=False,
            )
    if how.unsent_share or current is not None:
        continue_from(slow, fast, current, residual if how.unsent_share else None, how.unsent_share)
    return squares_C.sum().view(1)


def resident(x: Tensor, warps: int) -> int:
    """Return how many programs of `warps` warps the device of x can hold at once, or 1 on a CPU."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count * (WARPS // warps) if x.is_cuda else 1


@triton.jit(do_not_specialize=["first", "last", "all_kept"])
def land_chunks(
    slow,
    fast,
    residual,
    scale,
    momentum,
    position,
    value,
    own_position,
    own_value,
    total,
    senders,
    held,
    squares,
    beta,
    lr,
    mu,
    divisor,
    first,
    last,
    length,
    kept,
    chunk,
    k,
    all_kept,
    peers,
    NESTEROV: tl.constexpr,
    TILE: tl.constexpr,
    KEPT_TILE: tl.constexpr,
):
    """Apply the round to row first + program, and to every num_programs-th row after it, up to row last - 1.

    Each phase ends at a barrier.
    """
    program = tl.program_id(0).to(tl.int64)
    total += program * chunk
    if senders is not None:
        senders += program * chunk
    if scale is not None:
        held += program * chunk
    row = program + first
    while row < last:
        begin, start = row * k, row * chunk
        add_sent(position + begin, value + begin, total, senders, kept, all_kept, peers, KEPT_TILE)
        square = tl.zeros([TILE], tl.float64)
        for done in range(0, length, TILE):
            lane = done + tl.arange(0, TILE)
            mask = lane < length
            mean = mean_at(total + lane, senders, lane, mask, divisor)
            sweep(slow, fast, residual, scale, held, momentum, start, lane, mask, mean, beta, lr, mu, NESTEROV)
            square += mean.to(tl.float64) * mean.to(tl.float64)
        tl.store(squares + row, tl.sum(square, 0))
        tl.debug_barrier()
        if residual is not None:
            if scale is None:
                take_own(residual + start, own_position + begin, own_value + begin, kept, KEPT_TILE)
            else:
                take_own(held, own_position + begin, own_value + begin, kept, KEPT_TILE)
                tl.debug_barrier()
                store_residual(held, residual, scale, start, length, TILE)
        clear_sent(position + begin, total, senders, kept, all_kept, peers, KEPT_TILE)
        row += tl.num_programs(0)


@triton.jit
def add_sent(position, value, total, senders, kept, all_kept, peers, KEPT_TILE: tl.constexpr):
    """Add all peers' kept values of one chunk to the sums, one peer after another."""
    for _ in range(peers):
        for done in range(0, kept, KEPT_TILE):
            lane = done + tl.arange(0, KEPT_TILE)
            mask = lane < kept
            at = tl.load(position + lane, mask=mask, other=0)
            v = tl.load(value + lane, mask=mask, other=0.0)
            tl.store(total + at, tl.load(total + at, mask=mask, other=0.0) + v, mask=mask)
            if senders is not None:
                sent = tl.load(senders + at, mask=mask, other=0.0)
                tl.store(senders + at, sent + (v != 0).to(tl.float32), mask=mask)
        tl.debug_barrier()
        position += all_kept
        value += all_kept


@triton.jit
def mean_at(total, senders, lane, mask, divisor):
    """Return the mean: sum / divisor, or sum / senders. A sum of 0 is not divided, because that is slow on a GPU."""
    x = tl.load(total, mask=mask, other=0.0)
    by = tl.full(x.shape, 1.0, tl.float32) * divisor
    if senders is not None:
        by = tl.maximum(tl.load(senders + lane, mask=mask, other=0.0), 1.0)
    return tl.where(x == 0, x, tl.div_rn(tl.where(x == 0, 1.0, x), by))


@triton.jit
def sweep(slow, fast, residual, scale, held, momentum, start, lane, mask, mean, beta, lr, mu, NESTEROV: tl.constexpr):
    """Update the residual e (or its buffer `held`), the momentum b, and the slow and fast weights of one tile.

    e ← (slow − fast) + e · beta;  b ← b · mu + mean;  slow ← slow − step · lr;  fast ← slow
    """
    at = start + lane
    x = load_float(slow + at, mask)
    if residual is not None:
        e = (x - load_float(fast + at, mask)) + load_residual(residual, scale, at, mask) * beta
        if scale is None:
            store_float(residual + at, e, mask)
        else:
            tl.store(held + lane, e, mask=mask)
    step = mean
    if momentum is not None:
        b = load_float(momentum + at, mask) * mu + mean
        store_float(momentum + at, b, mask)
        step = mean + b * mu if NESTEROV else b
    x = x - step * lr
    store_float(slow + at, x, mask)
    store_float(fast + at, x, mask)


@triton.jit
def take_own(residual, position, value, kept, KEPT_TILE: tl.constexpr):
    """Subtract the values that this peer sent from the residual of one chunk."""
    for done in range(0, kept, KEPT_TILE):
        lane = done + tl.arange(0, KEPT_TILE)
        mask = lane < kept
        at = tl.load(position + lane, mask=mask, other=0)
        e = tl.load(residual + at, mask=mask, other=0.0)
        tl.store(residual + at, e - tl.load(value + lane, mask=mask, other=0.0), mask=mask)


@triton.jit
def clear_sent(position, total, senders, kept, all_kept, peers, KEPT_TILE: tl.constexpr):
    """Set the sums of one chunk to zero at all coordinates that a peer sent."""
    for _ in range(peers):
        for done in range(0, kept, KEPT_TILE):
            lane = done + tl.arange(0, KEPT_TILE)
            at = tl.load(position + lane, mask=lane < kept, other=0)
            tl.store(total + at, 0.0, mask=lane < kept)
            if senders is not None:
                tl.store(senders + at, 0.0, mask=lane < kept)
        position += all_kept
    tl.debug_barrier()
