"""Read and write chunks of a residual in compiled loops: float32 in place, 8 bits through a buffer.

Every chunk starts at the beginning of a block (`kernels.eight_bit`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from outerloop.kernels.cpu.arrays import MAGNITUDE
from outerloop.kernels.cpu.compiled import compiled
from outerloop.kernels.eight_bit import BLOCK, TOP

TINY = np.finfo(np.float32).tiny


def read_residual_row(residual: Any, scale: Any, start: int, n: int, buffer: Any) -> Any:
    """Return residual[start : start + n] as float32. Can be called from compiled code only.

    The row is a view of a float32 residual, or is decoded from an 8-bit residual to `buffer`. The caller may modify the
    row, and must then call `write_residual_row` to store it.
    """
    raise NotImplementedError


def write_residual_row(row: Any, residual: Any, scale: Any, start: int) -> None:
    """Store a modified row that `read_residual_row` returned. Can be called from compiled code only."""
    raise NotImplementedError


@overload(read_residual_row)
def read_residual_row_of(residual, scale, start, n, buffer):
    """Select the implementation of `read_residual_row` for the dtype of the residual."""

    def view(residual, scale, start, n, buffer):
        return residual[start : start + n]

    def widened(residual, scale, start, n, buffer):
        for begin in range(0, n, BLOCK):
            row = buffer[begin : min(begin + BLOCK, n)]
            code, each = residual[start + begin : start + begin + row.size], scale[(start + begin) // BLOCK]
            for i in range(row.size):
                row[i] = np.float32(code[i]) * each
        return buffer[:n]

    return view if residual.dtype == types.float32 else widened


@overload(write_residual_row)
def write_residual_row_of(row, residual, scale, start):
    """Select the implementation of `write_residual_row` for the dtype of the residual."""

    def stays(row, residual, scale, start):
        pass

    def narrowed(row, residual, scale, start):
        for begin in range(0, row.size, BLOCK):
            x, block = row[begin : begin + BLOCK], (start + begin) // BLOCK
            write_residual_block(x, residual[start + begin : start + begin + x.size], scale[block : block + 1])

    return stays if residual.dtype == types.float32 else narrowed


@compiled
def write_residual_block(x, code, scale):
    """Encode block `x` in 8 bits per value. Write the codes to `code` and their common scale to `scale`, (1,)."""
    bits, size = x.view(np.int32), np.int32(0)
    for i in range(x.size):  # compares integers: a maximum of floats is not vectorized
        size = max(size, bits[i] & np.int32(MAGNITUDE))
    scale.view(np.int32)[0] = size
    scale[0] /= np.float32(TOP)
    by = max(scale[0], TINY)
    for i in range(x.size):
        ratio = np.rint(x[i] / by)
        code[i] = np.int8(ratio if ratio == ratio else np.float32(0))  # 0 for NaN
