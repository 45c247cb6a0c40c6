"""Compiled loops that encode a row of positions as the codes of its gaps, and decode it. Used for Rice and Elias-Fano.

Both codes contain the gaps between the high parts of ascending positions. A gap is encoded as `gap >> b` zeros, a one
and the b low bits of the gap:

    high = position >> low;  gap = high - min_high;  the next min_high = high + step
    Rice: low = 0, step = 1. Elias-Fano: b = 0, step = 0, and the low bits of all positions come first.

Four codes are processed together if they fit in 56 bits, else one at a time. Every run of zeros is checked against the
end of its lane or row, so that decoding takes bounded time even if the bytes are arbitrary.

Bit streams are read and written 64 bits at a time. Each load and store of 8 bytes is checked against the end of its
array, so that nothing is read past the end even if the bytes are arbitrary.

Names: `at` is a bit offset; `i` and `end` are byte offsets; `word` contains the `fill` bits that are not stored yet
(fewer than 8 after each `flush`); `m` is the index of a position in its row; `rows` is (count, chunk, k).
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from outerloop.kernels.cpu.arrays import element_pointer
from outerloop.kernels.cpu.compiled import compiled

ONE = np.uint64(1)
ROOM = 56
"""Number of bits that `peek` always returns, and that always fit into `word` after `flush`: 64 minus one byte."""


@intrinsic
def trailing_zeros(typing, word):
    """Return the number of zeros below the lowest set bit of a uint64, or 64 if no bit is set."""

    def generate(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@intrinsic
def load8(typing, byte, i):
    """Return the uint64 in byte[i : i + 8]."""

    def generate(context, builder, signature, args):
        return builder.load(
            element_pointer(context, builder, signature.args[0], args[0], args[1], ir.IntType(64)), align=1
        )

    return types.uint64(byte, types.int64), generate


@intrinsic
def store8(typing, byte, i, word):
    """Set byte[i : i + 8] = word."""

    def generate(context, builder, signature, args):
        builder.store(
            args[2], element_pointer(context, builder, signature.args[0], args[0], args[1], ir.IntType(64)), align=1
        )
        return context.get_dummy_value()

    return types.void(byte, types.int64, types.uint64), generate


@compiled
def low_bits(word, bits):
    """Return the lowest `bits` bits of a uint64, for `bits` below 64."""
    return word & ((ONE << np.uint64(bits)) - ONE)


@compiled
def peek(byte, at):
    """Return at least 56 bits of `byte`, starting at bit offset `at`. Bits past the end of the array are zeros."""
    i = at >> 3
    if i + 8 <= byte.size:
        return load8(byte, i) >> np.uint64(at & 7)
    word = np.uint64(0)
    for j in range(byte.size - 1, i - 1, -1):
        word = (word << np.uint64(8)) | np.uint64(byte[j])
    return word >> np.uint64(at & 7)


@compiled
def put(byte, i, end, word):
    """Store the 8 bytes of `word` at byte[i:], or as many of them as fit before byte[end]."""
    if i + 8 <= end:
        store8(byte, i, word)
        return
    for j in range(i, end):
        byte[j] = low_bits(word, 8)
        word >>= np.uint64(8)


@compiled
def flush(byte, i, end, word, fill):
    """Move as many complete bytes as possible from `word` to byte[i:]. Return the new (i, word, fill).

    `word` contains `fill` bits that are not stored yet. Fewer than 8 of them remain.
    """
    put(byte, i, end, word)
    return i + (fill >> 3), word >> np.uint64(fill & 56), fill & 7


@compiled
def finish(byte, i, end, word):
    """Store the pending bits in `word` at byte[i:], then zeros up to byte[end]."""
    while i < end:
        put(byte, i, end, word)
        i, word = i + 8, np.uint64(0)


@compiled
def only_zeros(byte, at, stop_at):
    """Return whether bits at .. stop_at - 1 of `byte` are all zero."""
    while at < stop_at:
        if low_bits(peek(byte, at), min(ROOM, stop_at - at)):
            return False
        at += ROOM
    return True


# --- encode or decode the code of one gap ---


@compiled
def code(gap, b):
    """Return the Rice code of a gap, and the code's length in bits. If this exceeds 64, do not use the code.

    b: number of low bits.
    """
    zeros = gap >> b
    return ((low_bits(np.uint64(gap), b) << ONE) | ONE) << np.uint64(zeros & 63), zeros + 1 + b


@compiled
def joined(first, second):
    """Concatenate two (code, length in bits) pairs into one. If the length exceeds 64, do not use the code."""
    return first[0] | (second[0] << np.uint64(first[1] & 63)), first[1] + second[1]


@compiled
def write_code(byte, i, end, word, fill, gap, b):
    """Append the code of a gap, which may have any length, to the bit stream. Return the new (i, word, fill)."""
    while gap >> b > 32:
        i, word, fill = flush(byte, i, end, word, fill + 32)
        gap -= 32 << b
    bits, used = code(gap, b)
    return flush(byte, i, end, word | (bits << np.uint64(fill)), fill + used)


@compiled
def split(word, b):
    """Decode the first gap in a uint64. Return the gap, the length of its code in bits, and the remaining bits.

    If no bit of `word` is set, the length exceeds 64.
    """
    zeros = trailing_zeros(word)
    rest = (word >> np.uint64(zeros & 63)) >> ONE
    return (zeros << b) + np.int64(low_bits(rest, b)), zeros + 1 + b, rest >> np.uint64(b)


@compiled
def read_code(byte, at, stop_at, b):
    """Decode a gap whose code has any length, at bit offset `at`. Return the bit offset of the code's end, and the gap.

    The end is past `stop_at` if no bit before `stop_at` is set.
    """
    zeros, run = 0, trailing_zeros(peek(byte, at))
    while run >= ROOM and at <= stop_at:
        at, zeros = at + ROOM, zeros + ROOM
        run = trailing_zeros(peek(byte, at))
    at += run + 1
    return at + b, ((zeros + run) << b) + np.int64(low_bits(peek(byte, at), b))


# --- encode or decode the codes of a row ---


@compiled
def count_zeros(kept, length, b):
    """Return the number of leading zeros in the codes of a row's gaps, summed over the gaps.

    Returns -1 unless the positions `kept` ascend strictly within 0 .. length - 1.
    """
    signs = zeros = np.int64(kept[0]) >> b
    for m in range(1, kept.size):
        gap = kept[m] - kept[m - 1] - 1
        signs |= gap
        zeros += gap >> b
    return zeros if signs >= 0 and kept[-1] < length else -1


@compiled
def write_row(byte, i, end, word, fill, kept, b, low, step):
    """Append the codes of a row's gaps to the bit stream. Return the new (i, word, fill)."""
    min_high, m = 0, 0
    while m < kept.size:
        if m + 4 <= kept.size:
            high0, high1 = np.int64(kept[m]) >> low, np.int64(kept[m + 1]) >> low
            high2, high3 = np.int64(kept[m + 2]) >> low, np.int64(kept[m + 3]) >> low
            first = joined(code(high0 - min_high, b), code(high1 - high0 - step, b))
            second = joined(code(high2 - high1 - step, b), code(high3 - high2 - step, b))
            bits, used = joined(first, second)
            if used <= ROOM:
                i, word, fill = flush(byte, i, end, word | (bits << np.uint64(fill)), fill + used)
                min_high, m = high3 + step, m + 4
                continue
        high = np.int64(kept[m]) >> low
        i, word, fill = write_code(byte, i, end, word, fill, high - min_high, b)
        min_high, m = high + step, m + 1
    return i, word, fill


@compiled
def read_row(byte, at, stop_at, kept, b, low, step):
    """Decode a row's gaps from bit offset `at`, and set kept[:] to the high parts of the positions, shifted by `low`.

    Returns the bit offset of the end of the codes, and the minimum high part of a next position. The end is past
    `stop_at` if the codes are invalid.
    """
    min_high, m = 0, 0
    while m < kept.size:
        if m + 4 <= kept.size:
            gap0, used0, word = split(peek(byte, at), b)
            gap1, used1, word = split(word, b)
            gap2, used2, word = split(word, b)
            gap3, used3, word = split(word, b)
            used = used0 + used1 + used2 + used3
            if used <= ROOM:
                high0 = min_high + gap0
                high1 = high0 + step + gap1
                high2 = high1 + step + gap2
                high3 = high2 + step + gap3
                kept[m], kept[m + 1], kept[m + 2], kept[m + 3] = high0 << low, high1 << low, high2 << low, high3 << low
                at, min_high, m = at + used, high3 + step, m + 4
                continue
        at, gap = read_code(byte, at, stop_at, b)
        if at > stop_at:
            break
        kept[m] = (min_high + gap) << low
        min_high, m = min_high + gap + step, m + 1
    return at, min_high


@compiled
def row_bounds(position, row, rows):
    """Return a view of the kept positions of a row, and the row's length."""
    count, chunk, k = rows
    return position[row * k : row * k + k], min(chunk, count - row * chunk)
