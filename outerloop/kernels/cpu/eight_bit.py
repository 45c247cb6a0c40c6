"""A chunk of a residual for compiled loops: float32 where it lies, 8 bits by way of a buffer. Chunks begin at a block.

N values, L values a chunk.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from outerloop.kernels.cpu.compiled import compiled
from outerloop.kernels.cpu.vectors import MAGNITUDE
from outerloop.kernels.eight_bit import BLOCK, TOP

TINY = np.finfo(np.float32).tiny


def held_row(residual: Any, scale: Any, start: int, n: int, buffer: Any) -> Any:
    """(n,) float32: values start .. start + n, to be changed and then given to `hold_row`. Compiled code only."""
    raise NotImplementedError


def hold_row(row: Any, residual: Any, scale: Any, start: int) -> None:
    """Write back what `held_row` gave. Compiled code only."""
    raise NotImplementedError


@overload(held_row)
def held_row_of(residual, scale, start, n, buffer):
    """By the type of the residual."""

    def here(residual, scale, start, n, buffer):
        return residual[start : start + n]

    def widened(residual, scale, start, n, buffer):
        for begin in range(0, n, BLOCK):
            row = buffer[begin : min(begin + BLOCK, n)]
            code, each = residual[start + begin : start + begin + row.size], scale[(start + begin) // BLOCK]
            for i in range(row.size):
                row[i] = np.float32(code[i]) * each
        return buffer[:n]

    return here if residual.dtype == types.float32 else widened


@overload(hold_row)
def hold_row_of(row, residual, scale, start):
    """By the type of the residual."""

    def stays(row, residual, scale, start):
        pass

    def narrowed(row, residual, scale, start):
        for begin in range(0, row.size, BLOCK):
            x, block = row[begin : begin + BLOCK], (start + begin) // BLOCK
            hold_block(x, residual[start + begin : start + begin + x.size], scale[block : block + 1])

    return stays if residual.dtype == types.float32 else narrowed


@compiled
def hold_block(x, code, scale):
    """The codes of a block, and its scale (1,)."""
    bits, size = x.view(np.int32), np.int32(0)
    for i in range(x.size):  # as integers: for the sake of NaN the largest of floats is sought one by one
        size = max(size, bits[i] & np.int32(MAGNITUDE))
    scale.view(np.int32)[0] = size
    scale[0] /= np.float32(TOP)
    by = max(scale[0], TINY)
    for i in range(x.size):
        ratio = np.rint(x[i] / by)
        code[i] = np.int8(ratio if ratio == ratio else np.float32(0))  # NaN is not equal to itself
