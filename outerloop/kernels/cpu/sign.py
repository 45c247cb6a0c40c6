"""CPU kernel of `sign_decode`."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from outerloop.kernels.cpu.arrays import convert
from outerloop.kernels.cpu.compiled import compiled
from outerloop.kernels.cpu.groups import decode_groups_of_peers
from outerloop.kernels.sign import sign_decode


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
