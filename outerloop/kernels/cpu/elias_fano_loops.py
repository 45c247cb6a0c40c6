"""Compiled loops for Elias-Fano codes. Every row takes `size` bytes; a shorter last row takes fewer.

Used by positions.py. The names are explained in gap_loops.py.
"""

from __future__ import annotations

import numpy as np

from outerloop.kernels.cpu.compiled import compiled
from outerloop.kernels.cpu.gap_loops import (
    count_zeros,
    finish,
    flush,
    low_bits,
    only_zeros,
    peek,
    read_row,
    row_bounds,
    write_row,
)


@compiled
def write(position, byte, rows, low, size, first, stop):
    """Encode the positions of rows first .. stop - 1 to `byte`. Return False if a position is invalid."""
    for row in range(first, stop):
        kept, length = row_bounds(position, row, rows)
        if count_zeros(kept, length, 0) < 0:
            return False
        i, end = row * size, min(row * size + size, byte.size)
        word, fill = np.uint64(0), 0
        for p in kept:
            word |= low_bits(np.uint64(p), low) << np.uint64(fill)
            i, word, fill = flush(byte, i, end, word, fill + low)
        i, word, fill = write_row(byte, i, end, word, fill, kept, 0, low, 0)
        finish(byte, i, end, word)
    return True


@compiled
def read(byte, position, rows, low, size, first, stop):
    """Decode the positions of rows first .. stop - 1 from `byte`. Return False if a row is invalid."""
    for row in range(first, stop):
        kept, length = row_bounds(position, row, rows)
        at, stop_at = 8 * row * size, 8 * min(row * size + size, byte.size)
        end_at, high = read_row(byte, at + kept.size * low, stop_at, kept, 0, low, 0)
        if end_at > stop_at or high > (length - 1) >> low or not only_zeros(byte, end_at, stop_at):
            return False
        for m in range(kept.size):
            kept[m] |= np.int64(low_bits(peek(byte, at + m * low), low))
        if count_zeros(kept, length, 0) < 0:
            return False
    return True
