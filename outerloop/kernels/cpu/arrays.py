"""Convert tensors to the flat arrays that compiled loops take. bfloat16, which numpy lacks, becomes uint16.

This file also defines vector operations for compiled loops, written so that the processor never stalls on a store.
Magnitudes of float32 values are compared by their bits, as integers: the order is the same, and NaN is above all
numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload
from torch import Tensor

from outerloop.kernels.cpu.compiled import compiled

EMPTY = np.empty(0, np.float32)
"""Empty array that is passed to compiled loops in place of None."""
CACHE_LINE = 16
"""Number of float32 values in a cache line."""


def as_array(x: Tensor | None) -> Any:
    """Return a flat numpy view of a contiguous tensor, with its dtype (uint16 for bfloat16). Return EMPTY for None."""
    if x is None:
        return EMPTY
    flat = x.detach().view(-1)
    return flat.view(torch.int16).numpy().view(np.uint16) if x.dtype == torch.bfloat16 else flat.numpy()


def convert(source: Any, target: Any) -> None:
    """Set target[: source.size] = source. If the target is bfloat16, float32 values are rounded to nearest even.

    Can be called from compiled code only.
    """
    raise NotImplementedError


def float_row(source: Any, start: int, n: int, buffer: Any) -> Any:
    """Return source[start : start + n] as float32: a view, or a copy in `buffer`.

    The caller must not modify the result. Can be called from compiled code only.
    """
    raise NotImplementedError


def element_pointer(context: Any, builder: Any, kind: Any, array: Any, index: Any, what: Any) -> Any:
    """Return an LLVM pointer to array[index], for use in intrinsics.

    kind: numba type of the array.
    what: LLVM type that the pointer points to.
    """
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), what.as_pointer())


@intrinsic
def prefetch(typing_context, array, index):
    """Prefetch the cache line of array[index] into the L2 cache."""

    def generate(context, builder, signature, args):
        byte, i32 = ir.IntType(8), ir.IntType(32)
        address = element_pointer(context, builder, signature.args[0], args[0], args[1], byte)
        kind = ir.FunctionType(ir.VoidType(), [address.type, i32, i32, i32])
        read, keep, is_data = i32(0), i32(2), i32(1)
        call = builder.module.declare_intrinsic("llvm.prefetch", [address.type], kind)
        builder.call(call, [address, read, keep, is_data])
        return context.get_dummy_value()

    return types.void(array, index), generate


@overload(convert)
def convert_of(source, target):
    """Select the implementation of `convert` for the dtypes of source and target."""

    def copy(source, target):
        for i in range(source.size):
            target[i] = source[i]

    def widen(source, target):
        bits = target.view(np.uint32)
        for i in range(source.size):
            bits[i] = np.uint32(source[i]) << np.uint32(16)

    def narrow(source, target):
        bits = source.view(np.uint32)
        for i in range(source.size):
            even = (bits[i] >> np.uint32(16)) & np.uint32(1)
            target[i] = np.uint16((bits[i] + np.uint32(0x7FFF) + even) >> np.uint32(16))

    if source.dtype == target.dtype:
        return copy
    return widen if source.dtype == types.uint16 else narrow


@overload(float_row)
def float_row_of(source, start, n, buffer):
    """Select the implementation of `float_row` for the dtype of the source."""

    def view(source, start, n, buffer):
        return source[start : start + n]

    def widened(source, start, n, buffer):
        convert(source[start : start + n], buffer)
        return buffer[:n]

    return view if source.dtype == types.float32 else widened


@compiled
def prefetch_inputs(inputs, start, stop):
    """Prefetch values start .. stop - 1 of the arrays `inputs`: slow, fast and residual.

    `stop` may exceed the size of the arrays. `fast` and `residual` may be empty.
    """
    slow, fast, residual = inputs
    for i in range(start, min(stop, slow.size), CACHE_LINE):
        prefetch(slow, i)
        if fast.size:
            prefetch(fast, i)
        if residual.size:
            prefetch(residual, i)


@compiled
def sum_of_squares(x, n):
    """Return Σ x² of the first n values. It is computed as 64 parallel sums: fast, and accurate enough for a metric."""
    lanes = np.zeros(64, np.float32)
    whole = n // 64
    for block in range(whole):
        part = x[block * 64 : block * 64 + 64]
        for lane in range(64):
            lanes[lane] += part[lane] * part[lane]
    square = 0.0
    for lane in range(64):
        square += lanes[lane]
    for i in range(whole * 64, n):
        square += np.float64(x[i]) * np.float64(x[i])
    return square


WORD = 64
"""Number of values in most vectors of this file. The machine processes such a vector as several shorter vectors."""
TOGETHER = 4
"""Number of vectors processed together, with sums and maxima in registers."""

MAGNITUDE = 0x7FFFFFFF
"""Bit mask of the magnitude of a float32: all bits except the sign."""

PAIR = ir.VectorType(ir.FloatType(), 2)
FLOATS, INTS = ir.VectorType(ir.FloatType(), WORD), ir.VectorType(ir.IntType(32), WORD)
MAGNITUDES = ir.Constant(INTS, [MAGNITUDE] * WORD)


def everywhere(builder: Any, value: Any, vector: Any) -> Any:
    """Return an LLVM vector of this type with `value` in every lane."""
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), ir.Constant(INTS, [0] * WORD))


def offering(vectors: int) -> Any:
    """Return an intrinsic `offer` that processes `vectors` consecutive vectors of WORD values."""

    @intrinsic
    def offer(typing, slow, fast, held, i, beta, x, square, best, j):
        """Compute x = (slow − fast) + held · beta for `vectors` consecutive vectors of values, starting at index i.

        `held` is the residual. `best` is int32; all other arrays are float32.

        Adds (slow − fast)² to square[:64], and sets best[j : j + 64] to the maximum of its old values and |x|.
        """

        def generate(context, builder, signature, args):
            def at(n, index, vector=FLOATS):
                return element_pointer(context, builder, signature.args[n], args[n], index, vector)

            def load(n, index, vector=FLOATS):
                return builder.load(at(n, index, vector), align=4)

            start, decay, zero = args[3], everywhere(builder, args[4], FLOATS), ir.IntType(64)(0)
            squares, largest = load(6, zero), load(7, args[8], INTS)
            for n in range(vectors):
                here = builder.add(start, ir.IntType(64)(n * WORD))
                difference = builder.fsub(load(0, here), load(1, here))
                squares = builder.fadd(squares, builder.fmul(difference, difference))
                offered = builder.fadd(difference, builder.fmul(load(2, here), decay))
                builder.store(offered, at(5, here), align=4)
                size = builder.and_(builder.bitcast(offered, INTS), MAGNITUDES)
                largest = builder.select(builder.icmp_signed(">", size, largest), size, largest)
            builder.store(squares, at(6, zero), align=4)
            builder.store(largest, at(7, args[8], INTS), align=4)
            return context.get_dummy_value()

        return types.void(slow, fast, held, types.int64, types.float32, x, square, best, types.int64), generate

    return offer


offer_one, offer_together = offering(1), offering(TOGETHER)


@intrinsic
def add_counted(typing, sums, i, value):
    """Add `value` to sums[2i] and, if it is not 0, add 1 to sums[2i + 1], with one load and one store."""

    def generate(context, builder, signature, args):
        index, value = builder.shl(args[1], ir.IntType(64)(1)), args[2]
        one = builder.uitofp(builder.fcmp_unordered("!=", value, ir.FloatType()(0.0)), ir.FloatType())
        added = builder.insert_element(ir.Constant(PAIR, ir.Undefined), value, ir.IntType(32)(0))
        added = builder.insert_element(added, one, ir.IntType(32)(1))
        pair = element_pointer(context, builder, signature.args[0], args[0], index, PAIR)
        builder.store(builder.fadd(builder.load(pair, align=4), added), pair, align=4)
        return context.get_dummy_value()

    return types.void(sums, types.int64, types.float32), generate


@intrinsic
def reaching(typing, bits, i, bound):
    """Return a uint64 whose bit j is set if |x[i + j]| >= bound. `bits`, `bound`: the bits of float32 x and bound."""

    def generate(context, builder, signature, args):
        values = builder.load(element_pointer(context, builder, signature.args[0], args[0], args[1], INTS), align=4)
        reached = builder.icmp_signed(">=", builder.and_(values, MAGNITUDES), everywhere(builder, args[2], INTS))
        return builder.bitcast(reached, ir.IntType(WORD))

    return types.uint64(bits, types.int64, types.int32), generate
