"""`rotate` for the CPU: each chunk is transformed in a buffer that fits in the first-level cache."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from outerloop.kernels.cpu.arrays import as_array
from outerloop.kernels.cpu.compiled import compiled
from outerloop.kernels.rotation import LARGEST, rest_blocks, rotate
from outerloop.kernels.threads import parallel_rows


@rotate.kernel("CPU")
def rotate_cpu(x: Tensor, negative: Tensor, chunk: int, back: bool) -> Tensor:
    """Implement `rotate`."""
    out, chunks = torch.empty_like(x), x.numel() // chunk
    arrays = [as_array(x.contiguous()), as_array(negative), back, as_array(out)]
    parallel_rows(lambda a, b: rotate_rows(*arrays, 0, chunk, math.isqrt(chunk), a, b), chunks, values=x.numel())
    for start, length in rest_blocks(chunks * chunk, x.numel()):
        rotate_rows(*arrays, start, length, math.isqrt(length), 0, 1)
    return out


@compiled
def rotate_rows(x, negative, back, out, offset, length, root, first, last):
    """Rotate rows first .. last - 1. Row r consists of the `length` values from offset + r · length on. root: √L."""
    buffer, down, up = np.empty(length, np.float32), np.float32(1.0) / np.float32(length), np.float32(root)
    for row in range(first, last):
        start = offset + row * length
        if back:
            for i in range(length):
                buffer[i] = x[start + i] * down
        else:
            for i in range(length):
                buffer[i] = signed(x[start + i] * down, negative, start + i)
        transform(buffer)
        if back:
            for i in range(length):
                out[start + i] = signed(clamped(buffer[i] * up), negative, start + i)
        else:
            for i in range(length):
                out[start + i] = clamped(buffer[i] * up)


@compiled
def transform(x):
    """Replace x, which has 4^n values, by its Walsh-Hadamard transform: two stages per pass, lowest bit first."""
    step = 1
    while step < x.size:
        for start in range(0, x.size, 4 * step):
            a, b = x[start : start + step], x[start + step : start + 2 * step]
            c, d = x[start + 2 * step : start + 3 * step], x[start + 3 * step : start + 4 * step]
            for i in range(step):
                s, t, u, v = a[i] + b[i], a[i] - b[i], c[i] + d[i], c[i] - d[i]
                a[i], b[i], c[i], d[i] = s + u, t + v, s - u, t - v
        step *= 4


@compiled
def signed(x, negative, i):
    """Return x, or -x if bit i is 1."""
    return -x if negative[i // 8] >> np.uint8(i % 8) & 1 else x


@compiled
def clamped(x):
    """Return x, clamped to the range of float32."""
    return min(max(x, np.float32(-LARGEST)), np.float32(LARGEST))
