"""The loops of cpu_positions.py, compiled: rows of ascending positions <-> bytes.

Both codes send the gaps between high parts of positions, each as `gap >> b` zeros, a one and b low bits:

    high = position >> low;  gap = high - least;  the next least = high + step
    Rice: low 0, step 1. Elias-Fano: b 0, step 0, and the low bits of all positions in front.

Bits are collected in 64 and stored 8 bytes at once; a reader loads 8 bytes where it stands. Both take four codes in one
go where 56 bits hold them, and one at a time where not. Every load and store is held against the end of its array and
every run of zeros against the end of its lane, so bytes of any kind are read in bounded time and never past an end.

Names: `at` counts bits, `i` and `end` bytes, `m` positions of a row; `word` holds `fill` bits that wait to be stored,
fewer than 8 between two codes; `rows` is (count, chunk, k).
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from outerloop.kernels.compiled import compiled

ONE = np.uint64(1)
ROOM = 56
"""Bits that `peek` gives and `flush` takes at least: 64 less a byte begun."""


# --- 64 bits at a time ---


@intrinsic
def trailing_zeros(typing, word):
    """Zeros below the lowest one of a uint64, 64 when it has none."""

    def generate(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


def address(context, builder, signature, args):
    """Where byte[i] lies, as the place of a uint64."""
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.bitcast(builder.gep(array.data, [args[1]]), ir.IntType(64).as_pointer())


@intrinsic
def load8(typing, byte, i):
    """The uint64 in byte[i : i + 8]."""

    def generate(context, builder, signature, args):
        return builder.load(address(context, builder, signature, args), align=1)

    return types.uint64(byte, types.int64), generate


@intrinsic
def store8(typing, byte, i, word):
    """byte[i : i + 8] = word."""

    def generate(context, builder, signature, args):
        builder.store(args[2], address(context, builder, signature, args), align=1)
        return context.get_dummy_value()

    return types.void(byte, types.int64, types.uint64), generate


@compiled
def low_bits(word, bits):
    """The lowest bits, less than 64, of a uint64."""
    return word & ((ONE << np.uint64(bits)) - ONE)


@compiled
def peek(byte, at):
    """The bits from `at` on; 56 at least, zeros past the end of the array."""
    i = at >> 3
    if i + 8 <= byte.size:
        return load8(byte, i) >> np.uint64(at & 7)
    word = np.uint64(0)
    for j in range(byte.size - 1, i - 1, -1):
        word = (word << np.uint64(8)) | np.uint64(byte[j])
    return word >> np.uint64(at & 7)


@compiled
def put(byte, i, end, word):
    """Store 8 bytes, or as many as there is room for before `end`."""
    if i + 8 <= end:
        store8(byte, i, word)
        return
    for j in range(i, end):
        byte[j] = low_bits(word, 8)
        word >>= np.uint64(8)


@compiled
def flush(byte, i, end, word, fill):
    """Store what waits but the bits of a byte begun: the new (i, word, fill)."""
    put(byte, i, end, word)
    return i + (fill >> 3), word >> np.uint64(fill & 56), fill & 7


@compiled
def finish(byte, i, end, word):
    """Store what waits, and zeros up to `end`."""
    while i < end:
        put(byte, i, end, word)
        i, word = i + 8, np.uint64(0)


@compiled
def only_zeros(byte, at, stop_at):
    """Whether there is no one from `at` up to `stop_at`."""
    while at < stop_at:
        if low_bits(peek(byte, at), min(ROOM, stop_at - at)):
            return False
        at += ROOM
    return True


# --- one code, and four ---


@compiled
def code(gap, b):
    """A gap's code and its bits; another code when they are more than 64."""
    zeros = gap >> b
    return ((low_bits(np.uint64(gap), b) << ONE) | ONE) << np.uint64(zeros & 63), zeros + 1 + b


@compiled
def joined(first, second):
    """Two codes in a row; something else when they are more than 64 bits."""
    return first[0] | (second[0] << np.uint64(first[1] & 63)), first[1] + second[1]


@compiled
def write_code(byte, i, end, word, fill, gap, b):
    """Append a code of any length: the new (i, word, fill)."""
    while gap >> b > 32:
        i, word, fill = flush(byte, i, end, word, fill + 32)
        gap -= 32 << b
    bits, used = code(gap, b)
    return flush(byte, i, end, word | (bits << np.uint64(fill)), fill + used)


@compiled
def split(word, b):
    """A word's first gap, the bits of its code, and the rest of the word; more bits than 64 when it has no one."""
    zeros = trailing_zeros(word)
    rest = (word >> np.uint64(zeros & 63)) >> ONE
    return (zeros << b) + np.int64(low_bits(rest, b)), zeros + 1 + b, rest >> np.uint64(b)


@compiled
def read_code(byte, at, stop_at, b):
    """A code of any length: where it ends, which is past `stop_at` when no one comes before that, and its gap."""
    zeros, run = 0, trailing_zeros(peek(byte, at))
    while run >= ROOM and at <= stop_at:
        at, zeros = at + ROOM, zeros + ROOM
        run = trailing_zeros(peek(byte, at))
    at += run + 1
    return at + b, ((zeros + run) << b) + np.int64(low_bits(peek(byte, at), b))


# --- a row ---


@compiled
def zeros_of(kept, length, b):
    """Zeros in the codes of a row's gaps; negative unless it ascends strictly from 0 or more to less than `length`."""
    signs = zeros = np.int64(kept[0]) >> b
    for m in range(1, kept.size):
        gap = kept[m] - kept[m - 1] - 1
        signs |= gap
        zeros += gap >> b
    return zeros if signs >= 0 and kept[-1] < length else -1


@compiled
def write_row(byte, i, end, word, fill, kept, b, low, step):
    """Append the codes of a row: the new (i, word, fill)."""
    least, m = 0, 0
    while m < kept.size:
        if m + 4 <= kept.size:
            high0, high1 = np.int64(kept[m]) >> low, np.int64(kept[m + 1]) >> low
            high2, high3 = np.int64(kept[m + 2]) >> low, np.int64(kept[m + 3]) >> low
            first = joined(code(high0 - least, b), code(high1 - high0 - step, b))
            second = joined(code(high2 - high1 - step, b), code(high3 - high2 - step, b))
            bits, used = joined(first, second)
            if used <= ROOM:
                i, word, fill = flush(byte, i, end, word | (bits << np.uint64(fill)), fill + used)
                least, m = high3 + step, m + 4
                continue
        high = np.int64(kept[m]) >> low
        i, word, fill = write_code(byte, i, end, word, fill, high - least, b)
        least, m = high + step, m + 1
    return i, word, fill


@compiled
def read_row(byte, at, stop_at, kept, b, low, step):
    """kept[:] = high << low: where their codes end, past `stop_at` when broken, and the least next high."""
    least, m = 0, 0
    while m < kept.size:
        if m + 4 <= kept.size:
            gap0, used0, word = split(peek(byte, at), b)
            gap1, used1, word = split(word, b)
            gap2, used2, word = split(word, b)
            gap3, used3, word = split(word, b)
            used = used0 + used1 + used2 + used3
            if used <= ROOM:
                high0 = least + gap0
                high1 = high0 + step + gap1
                high2 = high1 + step + gap2
                high3 = high2 + step + gap3
                kept[m], kept[m + 1], kept[m + 2], kept[m + 3] = high0 << low, high1 << low, high2 << low, high3 << low
                at, least, m = at + used, high3 + step, m + 4
                continue
        at, gap = read_code(byte, at, stop_at, b)
        if at > stop_at:
            break
        kept[m] = (least + gap) << low
        least, m = least + gap + step, m + 1
    return at, least


@compiled
def row_of(position, row, rows):
    """What a row keeps, as a view, and its length."""
    count, chunk, k = rows
    return position[row * k : row * k + k], min(chunk, count - row * chunk)


# --- Rice: lanes of rows ---


@compiled
def rows_of(lane, lane_rows, rows):
    """The first row of a lane and the one after its last."""
    count, chunk, _ = rows
    return lane * lane_rows, min((lane + 1) * lane_rows, -(-count // chunk))


@compiled
def rice_sizes(position, size, rows, lane_rows, b, first, stop):
    """size[lane] = its bytes, for lanes first .. stop. False when positions are not valid."""
    for lane in range(first, stop):
        bits = 0
        first_row, last_row = rows_of(lane, lane_rows, rows)
        for row in range(first_row, last_row):
            kept, length = row_of(position, row, rows)
            zeros = zeros_of(kept, length, b)
            if zeros < 0:
                return False
            bits += zeros + kept.size * (b + 1)
        size[lane] = (bits + 7) >> 3
    return True


@compiled
def rice_write(position, byte, border, rows, lane_rows, b, first, stop):
    """byte[border[lane] : border[lane + 1]] = its codes, for lanes first .. stop."""
    for lane in range(first, stop):
        i, end = border[lane], border[lane + 1]
        word, fill = np.uint64(0), 0
        first_row, last_row = rows_of(lane, lane_rows, rows)
        for row in range(first_row, last_row):
            kept, _ = row_of(position, row, rows)
            i, word, fill = write_row(byte, i, end, word, fill, kept, b, 0, 1)
        finish(byte, i, end, word)


@compiled
def rice_read(byte, position, border, rows, lane_rows, b, first, stop):
    """The positions of lanes first .. stop. False when one of the lanes is not good."""
    for lane in range(first, stop):
        at, stop_at = 8 * border[lane], 8 * border[lane + 1]
        first_row, last_row = rows_of(lane, lane_rows, rows)
        for row in range(first_row, last_row):
            kept, length = row_of(position, row, rows)
            at, least = read_row(byte, at, stop_at, kept, b, 0, 1)
            if at > stop_at or least > length:
                return False
        if stop_at - at >= 8 or not only_zeros(byte, at, stop_at):
            return False
    return True


# --- Elias-Fano: rows of `size` bytes, a ragged last one of fewer ---


@compiled
def elias_fano_write(position, byte, rows, low, size, first, stop):
    """The bytes of rows first .. stop. False when positions are not valid."""
    for row in range(first, stop):
        kept, length = row_of(position, row, rows)
        if zeros_of(kept, length, 0) < 0:
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
def elias_fano_read(byte, position, rows, low, size, first, stop):
    """The positions of rows first .. stop. False when one of the rows is not good."""
    for row in range(first, stop):
        kept, length = row_of(position, row, rows)
        at, stop_at = 8 * row * size, 8 * min(row * size + size, byte.size)
        end_at, high = read_row(byte, at + kept.size * low, stop_at, kept, 0, low, 0)
        if end_at > stop_at or high > (length - 1) >> low or not only_zeros(byte, end_at, stop_at):
            return False
        for m in range(kept.size):
            kept[m] |= np.int64(low_bits(peek(byte, at + m * low), low))
        if zeros_of(kept, length, 0) < 0:
            return False
    return True
