"""Convert tensors to the flat arrays that compiled loops take. bfloat16, which numpy lacks, becomes uint16."""

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
"""Stands for an optional array that is absent."""
CACHE_LINE = 16
"""Number of float32 values in a cache line."""


def as_array(x: Tensor | None) -> Any:
    """Return a view of a contiguous tensor: (N,) float32, or uint16 for bfloat16; NOTHING for None."""
    if x is None:
        return EMPTY
    flat = x.detach().view(-1)
    return flat.view(torch.int16).numpy().view(np.uint16) if x.dtype == torch.bfloat16 else flat.numpy()


def convert(source: Any, target: Any) -> None:
    """Set target[: source.size] = source; narrowing rounds to nearest even. Only for compiled code."""
    raise NotImplementedError


def float_row(source: Any, start: int, n: int, buffer: Any) -> Any:
    """Return values start .. start + n as float32, to read: a view, or widened in `buffer`. Only for compiled code."""
    raise NotImplementedError


def element_pointer(context: Any, builder: Any, kind: Any, array: Any, index: Any, what: Any) -> Any:
    """Return the pointer to array[index], for an intrinsic. `kind`: the array's numba type; `what`: the LLVM type."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), what.as_pointer())


@intrinsic
def prefetch(typing_context, array, index):
    """Prefetch the cache line of array[index] into the second-level cache."""

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
    """Choose the implementation of `convert` by the types of source and target."""

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
    """Choose the implementation of `float_row` by the type of the source."""

    def view(source, start, n, buffer):
        return source[start : start + n]

    def widened(source, start, n, buffer):
        convert(source[start : start + n], buffer)
        return buffer[:n]

    return view if source.dtype == types.float32 else widened


@compiled
def prefetch_inputs(inputs, start, stop):
    """Prefetch the existing values start .. stop of (slow, fast, residual); the latter two may be NOTHING."""
    slow, fast, residual = inputs
    for i in range(start, min(stop, slow.size), CACHE_LINE):
        prefetch(slow, i)
        if fast.size:
            prefetch(fast, i)
        if residual.size:
            prefetch(residual, i)


@compiled
def sum_of_squares(x, n):
    """Return Σ x² of the first n values. 64 parallel float32 sums: vectorized, and accurate enough for a metric."""
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
