"""CPU kernels of `sign_encode` and `sign_decode`."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from outerloop.kernels.cpu.arrays import as_array, convert
from outerloop.kernels.cpu.compiled import compiled
from outerloop.kernels.cpu.groups import decode_groups_of_peers
from outerloop.kernels.reference import packed_bytes
from outerloop.kernels.sign import sign_decode, sign_encode
from outerloop.kernels.threads import parallel_rows

LARGEST = np.float64(torch.finfo(torch.bfloat16).max)
TOGETHER = 8
"""Threads share groups in units of eight, so that the signs of each unit end at a byte boundary."""


@sign_encode.kernel("CPU")
def sign_encode_cpu(x: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """Implement `sign_encode` on the CPU."""
    code = np.zeros(packed_bytes(x.numel(), 1), np.uint8)  # torch.zeros would wake torch's threads: see finite.py
    scale = torch.empty(-(-x.numel() // group), dtype=torch.bfloat16)
    arrays = [as_array(x.contiguous()), group, code, as_array(scale)]
    parallel_rows(lambda a, b: encode_groups(*arrays, a, b), -(-len(scale) // TOGETHER), values=x.numel())
    return torch.from_numpy(code), scale


@compiled
def encode_groups(x, group, code, scale, first, last):
    """Encode groups first · TOGETHER .. last · TOGETHER - 1 of x; stop early at the last group of x."""
    first, last = first * TOGETHER, min(last * TOGETHER, scale.size)
    means = np.empty(last - first, np.float32)
    for g in range(first, last):
        start, stop = g * group, min(g * group + group, x.size)
        total = 0.0
        for i in range(start, stop):
            total += np.float64(abs(x[i]))
            code[i // 8] |= np.uint8((x[i] < 0) << (i % 8))
        means[g - first] = min(total / (stop - start), LARGEST)
    convert(means, scale[first:last])


@sign_decode.kernel("CPU")
def sign_decode_cpu(code: list[Tensor], scale: list[Tensor], count: int, group: int) -> Tensor:
    """Implement `sign_decode` on the CPU."""
    return decode_groups_of_peers(decode_groups, code, scale, count, group)


@compiled
def decode_groups(code, scale, group, x, first, last):
    """Decode groups first .. last - 1 to x."""
    scales = np.empty(last - first, np.float32)
    convert(scale[first:last], scales)
    for g in range(first, last):
        size = scales[g - first]
        start, stop = g * group, min(g * group + group, x.size)
        whole = start + (stop - start) // 8 * 8 if start % 8 == 0 else start
        byte, eight = code[start // 8 : whole // 8], x[start:whole]
        for j in range(byte.size):
            for bit in range(8):
                eight[8 * j + bit] = signed(byte[j] >> np.uint8(bit), size)
        for i in range(whole, stop):
            x[i] = signed(code[i // 8] >> np.uint8(i % 8), size)


@compiled
def signed(bits, size):
    """Return −size if the lowest bit is 1, else size."""
    return -size if bits & 1 else size
