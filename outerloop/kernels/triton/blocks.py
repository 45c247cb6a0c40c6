"""Common code of the Triton kernels: block sizes for chunks, and access to bfloat16 values by their bits.

Every product and sum is rounded separately, because each launch sets `enable_fp_fusion=False` for Triton and the
assembler: a fused multiply-add would round once, while the reference implementation rounds twice. Quotients use
`tl.div_rn`, because `/` of float32 values is an approximation on a GPU. Denormals are not flushed to zero.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outerloop.kernels.select import Rows

LARGEST_CHUNK = 65536
"""The longest chunk that one program holds in registers, and the longest that codecs with chunks allow."""


def block_size(length: int) -> int:
    """Return the size of a block that holds `length` values: a power of two, as Triton requires."""
    return triton.next_power_of_2(length)


def num_warps(block: int, each: int) -> int:
    """Return the number of warps (1 .. 32, of 32 threads each) for a block whose threads hold `each` values."""
    return min(max(block // (32 * each), 1), 32)


def spans(rows: Rows) -> list[tuple[int, int, int, int]]:
    """Return (first row, row after the last, length, kept) for the full chunks, then for a shorter last chunk, if any.

    length: number of values in each of these chunks.
    kept: number of values kept from each chunk.

    The kernel is launched separately for the shorter chunk, because threads can move 16 bytes at a time only if all
    rows of a launch have the same length, a multiple of 16.
    """
    whole, rest = (0, rows.whole, rows.chunk, rows.k), (rows.whole, rows.chunks, rows.rest, rows.kept_of_rest)
    return [span for span in (whole, rest) if span[0] < span[1]]


def stored(x: Tensor | None) -> Tensor | None:
    """Return a float32 tensor unchanged, and a bfloat16 tensor viewed as int16, so that only `store_float` rounds.

    Return None for None.
    """
    return x.view(torch.int16) if x is not None and x.dtype == torch.bfloat16 else x


@triton.jit
def load_float(pointer, mask):
    """Load values of a tensor in the form that `stored` returns, as float32. Return 0 where the mask is false.

    Each value is read only once, so the cache may evict it first.
    """
    x = tl.load(pointer, mask=mask, other=0, eviction_policy="evict_first")
    if x.dtype == tl.int16:
        x = (x.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return x


@triton.jit
def store_float(pointer, x, mask):
    """Store x in a tensor in the form that `stored` returns. A bfloat16 tensor gets x rounded to nearest even."""
    if pointer.dtype.element_ty == tl.int16:
        bits = x.to(tl.int32, bitcast=True)
        rounded = tl.where(x == x, bits + 0x7FFF + ((bits >> 16) & 1), 0x7FC00000)
        tl.store(pointer, (rounded >> 16).to(tl.int16), mask=mask, eviction_policy="evict_first")
    else:
        tl.store(pointer, x, mask=mask, eviction_policy="evict_first")
