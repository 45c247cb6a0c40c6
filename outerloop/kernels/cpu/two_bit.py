"""CPU kernels of `two_bit_encode` and `two_bit_decode`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from outerloop.kernels.cpu.arrays import as_array, convert
from outerloop.kernels.cpu.compiled import compiled
from outerloop.kernels.cpu.groups import decode_groups_of_peers
from outerloop.kernels.reference import packed_bytes
from outerloop.kernels.threads import parallel_rows
from outerloop.kernels.two_bit import two_bit_decode, two_bit_encode

LARGEST = torch.finfo(torch.bfloat16).max
TOGETHER = 4
"""Number of groups that a thread encodes at a time: four, so that their codes end at a byte boundary."""


@two_bit_encode.kernel("CPU")
def two_bit_encode_cpu(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Implement `two_bit_encode` on the CPU."""
    code = np.zeros(packed_bytes(x.numel(), 2), np.uint8)  # torch.zeros would wake torch's threads: see finite.py
    level = torch.empty(-(-x.numel() // group), 2, dtype=torch.bfloat16)
    arrays = [as_array(x.contiguous()), group, code, as_array(level)]
    parallel_rows(lambda a, b: encode_groups(*arrays, a, b), -(-len(level) // TOGETHER), values=x.numel())
    return torch.from_numpy(code), level


@two_bit_decode.kernel("CPU")
def two_bit_decode_cpu(code: list[Tensor], level: list[Tensor], count: int, group: int) -> Tensor:
    """Implement `two_bit_decode` on the CPU."""
    return decode_groups_of_peers(decode_groups, code, level, count, group)


@compiled
def encode_groups(x, group, code, level, first, last):
    """Encode groups first · TOGETHER .. last · TOGETHER - 1 of x; stop early at the last group of x."""
    first, last = first * TOGETHER, min(last * TOGETHER, level.size // 2)
    levels = np.empty((last - first, 2), np.float32)
    for g in range(first, last):
        start, stop = g * group, min(g * group + group, x.size)
        total, total_high, high = 0.0, 0.0, 0
        for i in range(start, stop):
            total += np.float64(abs(x[i]))
        mean = total / (stop - start)
        for i in range(start, stop):
            size = np.float64(abs(x[i]))
            is_high = size > mean
            total_high += size if is_high else 0.0
            high += is_high
            code[i // 4] |= np.uint8((2 * (x[i] < 0) + is_high) << (2 * (i % 4)))
        lower = (total - total_high) / (stop - start - high)
        upper = total_high / high if high else lower
        levels[g - first, 0], levels[g - first, 1] = min(lower, LARGEST), min(upper, LARGEST)
    convert(levels.reshape(-1), level[2 * first : 2 * last])


@compiled
def decode_groups(code, level, group, x, first, last):
    """Decode groups first .. last - 1 to x."""
    levels = np.empty((last - first, 2), np.float32)
    convert(level[2 * first : 2 * last], levels.reshape(-1))
    for g in range(first, last):
        low, high = levels[g - first]
        start, stop = g * group, min(g * group + group, x.size)
        whole = start + (stop - start) // 4 * 4 if start % 4 == 0 else start
        byte, four = code[start // 4 : whole // 4], x[start:whole]
        for j in range(byte.size):  # four stores in one loop body are vectorized
            four[4 * j] = level_value(byte[j], low, high)
            four[4 * j + 1] = level_value(byte[j] >> np.uint8(2), low, high)
            four[4 * j + 2] = level_value(byte[j] >> np.uint8(4), low, high)
            four[4 * j + 3] = level_value(byte[j] >> np.uint8(6), low, high)
        for i in range(whole, stop):
            x[i] = level_value(code[i // 4] >> np.uint8(2 * (i % 4)), low, high)


@compiled
def level_value(bits, low, high):
    """Return the value of a code. The lower bit selects the magnitude; the upper bit is the sign."""
    size = high if bits & 1 else low
    return -size if bits & 2 else size
