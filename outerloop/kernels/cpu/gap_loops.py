"""Compiled loops for a row of ascending positions <-> the codes of its gaps: what Rice and Elias-Fano share.

Both send the gaps between high parts of positions, each as `gap >> b` zeros, a one and b low bits:

    high = position >> low;  gap = high - least;  the next least = high + step
    Rice: low 0, step 1. Elias-Fano: b 0, step 0, and the low bits of all positions in front.

Four codes are taken in one go where 56 bits hold them, and one at a time where not. Every run of zeros is held against
the end of its lane, so bytes of any kind are read in bounded time.

Names as in bit_loops.py; `m` counts positions of a row, `rows` is (count, chunk, k).
"""

from __future__ import annotations

import numpy as np

from outerloop.kernels.cpu.bit_loops import ONE, ROOM, flush, low_bits, peek, trailing_zeros
from outerloop.kernels.cpu.compiled import compiled

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
