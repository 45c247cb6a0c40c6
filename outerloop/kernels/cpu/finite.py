"""CPU kernel of `finite`, which runs on the same threads as the other kernels.

After a pass over many values, torch's own threads busy-wait for milliseconds and take a core from the next kernel. With
two threads on two cores, this made a launch take 1.6 times as long.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from outerloop.kernels.cpu.arrays import MAGNITUDE
from outerloop.kernels.cpu.compiled import compiled
from outerloop.kernels.finite import finite
from outerloop.kernels.threads import parallel_rows

INFINITE = 0x7F800000
"""The bits of float32 infinity, read as an integer. NaN gives a larger integer, every number a smaller one."""


@finite.kernel("CPU")
def finite_cpu(x: Tensor) -> Tensor:
    """Implement `finite` on the CPU. Tensors other than float32 use the reference implementation."""
    if x.dtype != torch.float32:
        return finite.definition(x)
    bits, found = x.detach().reshape(-1).numpy().view(np.int32), []
    parallel_rows(lambda first, last: found.append(largest(bits, first, last) < INFINITE), bits.size, values=bits.size)
    return torch.tensor(all(found))


@compiled
def largest(bits, first, last):
    """Return the largest magnitude in bits[first : last], float32 values whose bits are read as integers."""
    top = np.int32(0)
    for i in range(first, last):
        top = max(top, bits[i] & np.int32(MAGNITUDE))
    return top
