"""Bit streams for compiled loops, 64 bits at a time: each load and store moves 8 bytes.

Every load and store is checked against the end of its array, so arbitrary bytes are never read past the end.

Names: `at` counts bits; `i` and `end` count bytes; `word` holds `fill` bits that are not stored yet, fewer than 8
between two calls of `flush`.
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
"""Minimum number of bits that `peek` returns and `flush` accepts: 64 minus a partial byte."""


@intrinsic
def trailing_zeros(typing, word):
    """Return the number of zeros below the lowest set bit of a uint64; 64 if no bit is set."""

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
    """Return the lowest `bits` < 64 bits of a uint64."""
    return word & ((ONE << np.uint64(bits)) - ONE)


@compiled
def peek(byte, at):
    """Return the bits from `at` on: at least 56, zeros past the end of the array."""
    i = at >> 3
    if i + 8 <= byte.size:
        return load8(byte, i) >> np.uint64(at & 7)
    word = np.uint64(0)
    for j in range(byte.size - 1, i - 1, -1):
        word = (word << np.uint64(8)) | np.uint64(byte[j])
    return word >> np.uint64(at & 7)


@compiled
def put(byte, i, end, word):
    """Store 8 bytes, or as many as fit before `end`."""
    if i + 8 <= end:
        store8(byte, i, word)
        return
    for j in range(i, end):
        byte[j] = low_bits(word, 8)
        word >>= np.uint64(8)


@compiled
def flush(byte, i, end, word, fill):
    """Store the pending full bytes, not the bits of a partial byte. Return the new (i, word, fill)."""
    put(byte, i, end, word)
    return i + (fill >> 3), word >> np.uint64(fill & 56), fill & 7


@compiled
def finish(byte, i, end, word):
    """Store the pending bits, then zeros up to `end`."""
    while i < end:
        put(byte, i, end, word)
        i, word = i + 8, np.uint64(0)


@compiled
def only_zeros(byte, at, stop_at):
    """Return whether all bits from `at` up to `stop_at` are zeros."""
    while at < stop_at:
        if low_bits(peek(byte, at), min(ROOM, stop_at - at)):
            return False
        at += ROOM
    return True
