"""Vector operations of compiled loops, without stores that could stall.

float32 magnitudes are compared by their bits, as integers: the order is the same, and NaN is above all.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from outerloop.kernels.cpu.arrays import element_pointer

WORD = 64
"""Number of values in most vectors of this file; the machine processes them as several shorter vectors."""
TOGETHER = 4
"""Number of vectors processed together, with sums and maxima in registers."""

MAGNITUDE = 0x7FFFFFFF
"""All bits of a float32 except its sign."""

PAIR = ir.VectorType(ir.FloatType(), 2)
FLOATS, INTS = ir.VectorType(ir.FloatType(), WORD), ir.VectorType(ir.IntType(32), WORD)
MAGNITUDES = ir.Constant(INTS, [MAGNITUDE] * WORD)


def everywhere(builder: Any, value: Any, vector: Any) -> Any:
    """Return a vector that repeats one value."""
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.IntType(32)(0))
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), ir.Constant(INTS, [0] * WORD))


def offering(vectors: int) -> Any:
    """Return `offer` for this number of consecutive vectors."""

    @intrinsic
    def offer(typing, slow, fast, held, i, beta, x, square, best, j):
        """Compute x = (slow − fast) + held · β from i on. All arrays are float32, except that `best` is int32.

        Adds (slow − fast)² to square[:64], and sets best[j : j + 64] to the maximum of itself and |x|.
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
    """Add value to sums[2i], and 1 to sums[2i + 1] unless the value is 0, with one load and one store."""

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
    """Return a uint64 whose bit j states whether float32 number j in bits[i : i + 64] has a magnitude >= bound."""

    def generate(context, builder, signature, args):
        values = builder.load(element_pointer(context, builder, signature.args[0], args[0], args[1], INTS), align=4)
        reached = builder.icmp_signed(">=", builder.and_(values, MAGNITUDES), everywhere(builder, args[2], INTS))
        return builder.bitcast(reached, ir.IntType(WORD))

    return types.uint64(bits, types.int64, types.int32), generate
