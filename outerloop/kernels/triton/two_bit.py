"""Triton kernels of `two_bit_encode` and `two_bit_decode`.

Encoding takes two kernels, because a byte may contain codes of two groups: the first computes the mean and the levels
of each group, the second writes the bytes. The input consists of the kept values only, so both kernels move little data
compared with `select`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outerloop.kernels.reference import packed_bytes
from outerloop.kernels.triton.blocks import block_size, load_float, num_warps, store_float, stored
from outerloop.kernels.two_bit import two_bit_decode, two_bit_encode

LARGEST = tl.constexpr(torch.finfo(torch.bfloat16).max)
BYTES = 256
"""Bytes of codes per program."""


@two_bit_encode.kernel("CUDA")
def two_bit_encode_triton(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Implement `two_bit_encode` on the GPU."""
    x, count = x.contiguous(), x.numel()
    code = x.new_empty(packed_bytes(count, 2), dtype=torch.uint8)
    mean_G = x.new_empty(-(-count // group), dtype=torch.float64)
    level_G2 = x.new_empty(len(mean_G), 2, dtype=torch.bfloat16)
    block = min(block_size(group), 4096)
    with torch.cuda.device_of(x):
        if count:
            levels_of_group[(len(mean_G),)](
                x,
                mean_G,
                stored(level_G2),
                count,
                group,
                BLOCK=block,
                num_warps=num_warps(block, 16),
                enable_fp_fusion=False,
            )
            encode_bytes[(triton.cdiv(len(code), BYTES),)](
                x, mean_G, code, count, group, BLOCK=BYTES, enable_fp_fusion=False
            )
    return code, level_G2


@two_bit_decode.kernel("CUDA")
def two_bit_decode_triton(code: list[Tensor], level: list[Tensor], count: int, group: int) -> Tensor:
    """Implement `two_bit_decode` on the GPU."""
    x_PN = level[0].new_empty(len(level), count, dtype=torch.float32)
    block = 4 * BYTES
    with torch.cuda.device_of(x_PN):
        for sent, size, x in zip(code, level, x_PN if count else [], strict=bool(count)):
            decode_values[(triton.cdiv(count, block),)](
                sent.contiguous(), stored(size.contiguous()), x, count, group, BLOCK=block, enable_fp_fusion=False
            )
    return x_PN


@triton.jit(do_not_specialize=["count"])
def levels_of_group(x, mean, level, count, group, BLOCK: tl.constexpr):
    """Compute the mean of |x| in the program's group, and two levels: the means of the |x| up to it and above it."""
    g = tl.program_id(0).to(tl.int64)
    n = tl.minimum(count - g * group, group)
    x += g * group
    total = tl.zeros([BLOCK], tl.float64)
    for done in range(0, n, BLOCK):
        total += magnitude(x, done + tl.arange(0, BLOCK), n)
    whole = tl.sum(total, 0)
    middle = whole / n.to(tl.float64)
    total_high, high = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.int32)
    for done in range(0, n, BLOCK):
        size = magnitude(x, done + tl.arange(0, BLOCK), n)
        total_high += tl.where(size > middle, size, 0.0)
        high += (size > middle).to(tl.int32)
    upper_sum, upper_count = tl.sum(total_high, 0), tl.sum(high, 0)
    lower = (whole - upper_sum) / (n - upper_count).to(tl.float64)
    upper = tl.where(upper_count > 0, upper_sum / tl.maximum(upper_count, 1).to(tl.float64), lower)
    tl.store(mean + g, middle)
    store_float(level + 2 * g, tl.minimum(lower, LARGEST).to(tl.float32), True)
    store_float(level + 2 * g + 1, tl.minimum(upper, LARGEST).to(tl.float32), True)


@triton.jit
def magnitude(x, lane, n):
    """Return |x| in float64, and 0 past the end of the group."""
    return tl.abs(tl.load(x + lane, mask=lane < n, other=0.0)).to(tl.float64)


@triton.jit(do_not_specialize=["count"])
def encode_bytes(x, mean, code, count, group, BLOCK: tl.constexpr):
    """Write BLOCK bytes of codes. Each byte contains the codes of four values."""
    byte = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    place = tl.arange(0, 4)[None, :]
    at = byte[:, None] * 4 + place
    mask = at < count
    v = tl.load(x + at, mask=mask, other=0.0)
    high = tl.abs(v).to(tl.float64) > tl.load(mean + at // group, mask=mask, other=0.0)
    both = 2 * (v < 0).to(tl.int32) + high.to(tl.int32)
    tl.store(code + byte, tl.sum(both << (2 * place), 1).to(tl.uint8), mask=byte * 4 < count)


@triton.jit(do_not_specialize=["count"])
def decode_values(code, level, x, count, group, BLOCK: tl.constexpr):
    """Decode BLOCK values. Signs are factors, because Triton computes −x as 0 − x, which turns 0 into 0, not −0."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    byte = tl.load(code + at // 4, mask=mask, other=0).to(tl.int32)
    both = (byte >> (2 * (at % 4)).to(tl.int32)) & 3
    size = load_float(level + at // group * 2 + (both & 1), mask)
    tl.store(x + at, size * tl.where(both >= 2, -1.0, 1.0), mask=mask)
