"""Read a 32-bit or 8-bit residual at any positions, and write an 8-bit residual chunk by chunk, in Triton.

A block is a group of 256 values that share a scale (`kernels.eight_bit`). Every chunk starts at a block boundary.
"""

from __future__ import annotations

import triton
import triton.language as tl

from outerloop.kernels import eight_bit
from outerloop.kernels.triton.blocks import load_float

BLOCK = tl.constexpr(eight_bit.BLOCK)
TOP = tl.constexpr(eight_bit.TOP)
TINY = tl.constexpr(2.0**-126)
ROUNDER = tl.constexpr(1.5 * 2.0**23)
"""Adding and then subtracting this number rounds a small float32 to an integer, half to even."""


@triton.jit
def load_residual(residual, scale, at, mask):
    """Load the values at positions `at` of a residual as float32. Return 0 where the mask is false."""
    e = load_float(residual + at, mask)
    if scale is not None:
        e = e.to(tl.float32) * tl.load(scale + at // BLOCK, mask=mask, other=0.0)
    return e


@triton.jit
def store_residual(values, code, scale, start, length, TILE: tl.constexpr):
    """Encode one chunk of the residual (`values`, which starts at position `start`), and store its codes and scales.

    TILE is a multiple of BLOCK.
    """
    BLOCKS: tl.constexpr = TILE // BLOCK
    for done in range(0, length, TILE):
        block = done // BLOCK + tl.arange(0, BLOCKS)
        lane = block[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
        x = tl.load(values + lane, mask=lane < length, other=0.0)
        size = tl.max(tl.abs(x), 1)
        each = tl.div_rn(size, tl.full(size.shape, TOP, tl.float32))
        by = tl.maximum(each, TINY)[:, None]
        rounded = (tl.div_rn(x, tl.broadcast_to(by, x.shape)) + ROUNDER) - ROUNDER
        tl.store(code + start + lane, rounded.to(tl.int8), mask=lane < length)
        tl.store(scale + start // BLOCK + block, each, mask=block * BLOCK < length)
