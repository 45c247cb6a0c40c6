"""CPU kernel of `rotate`. It processes one chunk at a time, because a chunk fits in the L1 cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from outerloop.kernels.cpu.arrays import FLOATS, INTS, MAGNITUDE, WORD, as_array, element_pointer, everywhere
from outerloop.kernels.cpu.compiled import compiled
from outerloop.kernels.cpu.finite import INFINITE
from outerloop.kernels.rotation import LARGEST, rotate
from outerloop.kernels.threads import parallel_rows

LANES = 16
"""Number of consecutive values for which two stages of the transform are computed together."""


@rotate.kernel("CPU")
def rotate_cpu(x: Tensor, negative: Tensor, chunk: int, back: bool) -> Tensor:
    """Implement `rotate` on the CPU."""
    out, chunks = x.clone(memory_format=torch.contiguous_format), -(-x.numel() // chunk)
    arrays = [as_array(out), as_array(negative)]
    parallel_rows(lambda first, last: rotate_rows(*arrays, chunk, back, first, last), chunks, values=x.numel())
    return out


def bits_array(negative: Tensor | None) -> Any:
    """Return the sign bits of a rotation as an array of bytes, or an empty array if there is no rotation."""
    return np.empty(0, np.uint8) if negative is None else as_array(negative)


@compiled
def rotate_rows(x, negative, chunk, back, first, last):
    """Rotate chunks first .. last - 1 in place, or rotate them back if `back`."""
    for row in range(first, last):
        start = row * chunk
        rotate_chunk(x[start : start + chunk], negative, start, back)


@compiled
def rotate_chunk(x, negative, start, back):
    """Rotate one chunk in place, or rotate it back if `back`, in blocks of 4^n values.

    start: position of the chunk's first value in the tensor.
    """
    at = 0
    while at < x.size:
        length, root = 1, np.float32(1)
        while 4 * length <= x.size - at:
            length, root = 4 * length, root * np.float32(2)
        block = x[at : at + length]
        if not is_finite(block.view(np.int32)):
            block[:] = np.float32(np.nan)
        if not back:
            flip_signs(block, negative, start + at)
        transform(block, np.float32(1) / (root * root))
        for i in range(length):
            block[i] = min(max(block[i] * root, np.float32(-LARGEST)), np.float32(LARGEST))
        if back:
            flip_signs(block, negative, start + at)
        at += length


@compiled
def is_finite(bits):
    """Return whether float32 values are all finite. `bits`: the values' bits, as int32."""
    largest = np.int32(0)
    for i in range(bits.size):
        largest = max(largest, bits[i] & np.int32(MAGNITUDE))
    return largest < INFINITE


@compiled
def flip_signs(x, negative, start):
    """Negate each value of x whose bit in `negative` is 1. `start`: position of x[0] in the tensor."""
    whole = x.size // WORD * WORD if start % WORD == 0 else 0
    words = negative[start // 8 : start // 8 + whole // 8].view(np.uint64)
    for j in range(words.size):
        flip_word(x, j * WORD, words[j])
    for i in range(whole, x.size):
        if negative[(start + i) // 8] >> np.uint8((start + i) % 8) & 1:
            x[i] = -x[i]


@compiled
def transform(x, factor):
    """Replace the 4^n values x by the Walsh-Hadamard transform of x · factor.

    The stages are in order of the position's bits, lowest bit first (kernels/rotation.py).
    """
    step = 1
    if x.size >= WORD:
        for i in range(0, x.size, WORD):
            transform_word(x, i, factor)
        step = WORD
    else:
        for i in range(x.size):
            x[i] *= factor
    while step < x.size:  # two stages per pass
        for start in range(0, x.size, 4 * step):
            if step >= LANES:
                for i in range(start, start + step, LANES):
                    transform_four(x, i, step)
            else:
                for i in range(start, start + step):
                    a, b, c, d = x[i], x[i + step], x[i + 2 * step], x[i + 3 * step]
                    s, t, u, v = a + b, a - b, c + d, c - d
                    x[i], x[i + step], x[i + 2 * step], x[i + 3 * step] = s + u, t + v, s - u, t - v
        step *= 4


@intrinsic
def flip_word(typing, x, i, negative):
    """Negate x[i + j] if bit j of the uint64 `negative` is 1, for each j below WORD."""

    def generate(context, builder, signature, args):
        address = element_pointer(context, builder, signature.args[0], args[0], args[1], FLOATS)
        value = builder.load(address, align=4)
        flip = builder.bitcast(args[2], ir.VectorType(ir.IntType(1), WORD))
        builder.store(builder.select(flip, builder.fneg(value), value), address, align=4)
        return context.get_dummy_value()

    return types.void(x, types.int64, types.uint64), generate


@intrinsic
def transform_word(typing, x, i, factor):
    """Replace x[i : i + WORD] by the Walsh-Hadamard transform of x[i : i + WORD] · factor, one stage per index bit."""

    def generate(context, builder, signature, args):
        address = element_pointer(context, builder, signature.args[0], args[0], args[1], FLOATS)
        value = builder.fmul(builder.load(address, align=4), everywhere(builder, args[2], FLOATS))
        for stage in range(WORD.bit_length() - 1):
            order = [lane ^ 1 << stage for lane in range(WORD)]
            other = builder.shuffle_vector(value, value, ir.Constant(INTS, order))
            is_second = ir.Constant(ir.VectorType(ir.IntType(1), WORD), [lane >> stage & 1 for lane in range(WORD)])
            value = builder.fadd(other, builder.select(is_second, builder.fneg(value), value))
        builder.store(value, address, align=4)
        return context.get_dummy_value()

    return types.void(x, types.int64, types.float32), generate


@intrinsic
def transform_four(typing, x, i, step):
    """Apply two stages of the transform to x[i + n · step], n = 0 .. 3, for LANES consecutive values of i."""

    def generate(context, builder, signature, args):
        lanes = ir.VectorType(ir.FloatType(), LANES)
        place = [builder.add(args[1], builder.mul(args[2], ir.IntType(64)(n))) for n in range(4)]
        address = [element_pointer(context, builder, signature.args[0], args[0], at, lanes) for at in place]
        a, b, c, d = (builder.load(at, align=4) for at in address)
        s, t, u, v = builder.fadd(a, b), builder.fsub(a, b), builder.fadd(c, d), builder.fsub(c, d)
        results = builder.fadd(s, u), builder.fadd(t, v), builder.fsub(s, u), builder.fsub(t, v)
        for at, result in zip(address, results, strict=True):
            builder.store(result, at, align=4)
        return context.get_dummy_value()

    return types.void(x, types.int64, types.int64), generate
