"""Compiled loops for Rice codes. An encoded tensor consists of lanes, and a lane consists of rows.

Used by positions.py. The names are explained in gap_loops.py.
"""

from __future__ import annotations

import numpy as np

from outerloop.kernels.cpu.compiled import compiled
from outerloop.kernels.cpu.gap_loops import count_zeros, finish, only_zeros, read_row, row_bounds, write_row


@compiled
def lane_bounds(lane, lane_rows, rows):
    """Return a lane's first row, and the row after its last row."""
    count, chunk, _ = rows
    return lane * lane_rows, min((lane + 1) * lane_rows, -(-count // chunk))


@compiled
def sizes(position, size, rows, lane_rows, b, first, stop):
    """Set size[lane] to the size in bytes of lanes first .. stop - 1. Return False if a position is invalid."""
    for lane in range(first, stop):
        bits = 0
        first_row, last_row = lane_bounds(lane, lane_rows, rows)
        for row in range(first_row, last_row):
            kept, length = row_bounds(position, row, rows)
            zeros = count_zeros(kept, length, b)
            if zeros < 0:
                return False
            bits += zeros + kept.size * (b + 1)
        size[lane] = (bits + 7) >> 3
    return True


@compiled
def write(position, byte, border, rows, lane_rows, b, first, stop):
    """Encode lanes first .. stop - 1; each is written to byte[border[lane] : border[lane + 1]]."""
    for lane in range(first, stop):
        i, end = border[lane], border[lane + 1]
        word, fill = np.uint64(0), 0
        first_row, last_row = lane_bounds(lane, lane_rows, rows)
        for row in range(first_row, last_row):
            kept, _ = row_bounds(position, row, rows)
            i, word, fill = write_row(byte, i, end, word, fill, kept, b, 0, 1)
        finish(byte, i, end, word)


@compiled
def find_lanes(byte, border):
    """Set border[lane] to the start of each lane, and border[-1] to the end of the last lane.

    Reads only the lane sizes at the beginning of `byte`; the caller must check that `byte` is long enough for them.
    Returns whether `byte` ends where the last lane ends.
    """
    border[0] = 2 * (border.size - 1)
    for lane in range(border.size - 1):
        border[lane + 1] = border[lane] + byte[2 * lane] + 256 * byte[2 * lane + 1]
    return border[-1] == byte.size


@compiled
def read(byte, position, border, rows, lane_rows, b, first, stop):
    """Decode the positions of lanes first .. stop - 1 from `byte`. Return False if a lane is invalid."""
    for lane in range(first, stop):
        at, stop_at = 8 * border[lane], 8 * border[lane + 1]
        first_row, last_row = lane_bounds(lane, lane_rows, rows)
        for row in range(first_row, last_row):
            kept, length = row_bounds(position, row, rows)
            at, min_high = read_row(byte, at, stop_at, kept, b, 0, 1)
            if at > stop_at or min_high > length:
                return False
        if stop_at - at >= 8 or not only_zeros(byte, at, stop_at):
            return False
    return True
