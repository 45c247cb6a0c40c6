"""CPU kernel of `exact_squares`: two passes over each row, without temporaries."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from outerloop.kernels.cpu.compiled import compiled
from outerloop.kernels.cpu.finite import largest
from outerloop.kernels.exact_squares import exact_squares, factor
from outerloop.kernels.threads import parallel_rows


@exact_squares.kernel("CPU")
def exact_squares_cpu(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Implement `exact_squares` on the CPU."""
    x_PN = x.detach().contiguous().numpy()
    magnitudes: list[np.ndarray] = []
    parallel_rows(
        lambda *ends: magnitudes.append(largest_of_rows(x_PN.view(np.int32), *ends)), x.shape[1], values=x.numel()
    )
    top_P = np.maximum.reduce(magnitudes).view(np.float32)
    factor_P, sums = np.array([factor(top, bits) for top in top_P.tolist()]), list[np.ndarray]()
    parallel_rows(lambda *ends: sums.append(sums_of_floors(x_PN, factor_P, *ends)), x.shape[1], values=x.numel())
    return torch.from_numpy(top_P), torch.from_numpy(np.add.reduce(sums))


@compiled
def largest_of_rows(bits, first, last):
    """Return the largest magnitude in columns first .. last - 1 of each row. `bits`: float32 read as integers."""
    top = np.empty(bits.shape[0], np.int32)
    for row in range(bits.shape[0]):
        top[row] = largest(bits[row], first, last)
    return top


@compiled
def sums_of_floors(x, scale, first, last):
    """Return Σ floor(x² · scale) over columns first .. last - 1 of each row, 0 for rows with scale 0."""
    total = np.zeros(x.shape[0], np.int64)
    for row in range(x.shape[0]):
        if scale[row]:
            for i in range(first, last):
                wide = np.float64(x[row, i])
                total[row] += np.int64(wide * wide * scale[row])
    return total
