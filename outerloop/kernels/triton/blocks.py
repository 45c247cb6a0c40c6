"""What the Triton kernels share: chunks as blocks, bfloat16 as its bits, and every product and sum rounded on its own.

Products and sums stay apart because each launch says `enable_fp_fusion=False`, to Triton and to the assembler: a fused
multiply-add would round once where the definition rounds twice. Quotients are `tl.div_rn`; a plain `/` of float32 is an
approximation on a GPU. Nothing flushes denormals.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from outerloop.kernels.rows import Rows

LARGEST_CHUNK = 65536
"""The longest chunk that one program holds in registers; the codecs that choose chunks allow no longer one."""


def block_of(length: int) -> int:
    """Lanes of a block for `length` values: a power of two, as Triton needs."""
    return triton.next_power_of_2(length)


def warps_of(block: int, each: int) -> int:
    """Warps of 32 threads, 1 .. 32, so that a thread holds `each` values of a block."""
    return min(max(block // (32 * each), 1), 32)


def spans(rows: Rows) -> list[tuple[int, int, int, int]]:
    """First row, last row, length and kept of the whole chunks, then of the ragged one: a launch each.

    Apart, because where the length is one multiple of 16 for all rows a thread moves 16 bytes at a time.
    """
    whole, rest = (0, rows.whole, rows.chunk, rows.k), (rows.whole, rows.chunks, rows.rest, rows.kept_of_rest)
    return [span for span in (whole, rest) if span[0] < span[1]]


def stored(x: Tensor | None) -> Tensor | None:
    """float32 as it is, bfloat16 as the int16 of its bits: rounded by `store_float` alone, alike on every device."""
    return x.view(torch.int16) if x is not None and x.dtype == torch.bfloat16 else x


@triton.jit
def load_float(pointer, there):
    """float32 of what `stored` gives; 0 where nothing is there. Read once, so it leaves the cache before what stays."""
    x = tl.load(pointer, mask=there, other=0, eviction_policy="evict_first")
    if x.dtype == tl.int16:
        x = (x.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return x


@triton.jit
def store_float(pointer, x, there):
    """The inverse, rounded to nearest even."""
    if pointer.dtype.element_ty == tl.int16:
        bits = x.to(tl.int32, bitcast=True)
        rounded = tl.where(x == x, bits + 0x7FFF + ((bits >> 16) & 1), 0x7FC00000)
        tl.store(pointer, (rounded >> 16).to(tl.int16), mask=there, eviction_policy="evict_first")
    else:
        tl.store(pointer, x, mask=there, eviction_policy="evict_first")
