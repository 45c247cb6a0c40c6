"""Streams of bits for compiled loops, 64 at a time: stored 8 bytes at once, loaded 8 bytes from where a reader stands.

Every load and store is held against the end of its array, so bytes of any kind are never read past an end.

Names: `at` counts bits, `i` and `end` bytes; `word` holds `fill` bits that wait to be stored, fewer than 8 between two
calls of `flush`.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from outerloop.kernels.cpu.arrays import place
from outerloop.kernels.cpu.compiled import compiled

ONE = np.uint64(1)
ROOM = 56
"""Bits that `peek` gives and `flush` takes at least: 64 less a byte begun."""


@intrinsic
def trailing_zeros(typing, word):
    """Zeros below the lowest one of a uint64, 64 when it has none."""

    def generate(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@intrinsic
def load8(typing, byte, i):
    """The uint64 in byte[i : i + 8]."""

    def generate(context, builder, signature, args):
        return builder.load(place(context, builder, signature.args[0], args[0], args[1], ir.IntType(64)), align=1)

    return types.uint64(byte, types.int64), generate


@intrinsic
def store8(typing, byte, i, word):
    """byte[i : i + 8] = word."""

    def generate(context, builder, signature, args):
        builder.store(args[2], place(context, builder, signature.args[0], args[0], args[1], ir.IntType(64)), align=1)
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
