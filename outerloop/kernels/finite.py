"""Check tensors for NaN and infinity."""

from __future__ import annotations

import torch
from torch import Tensor

from outerloop.kernels.operator import operator


def all_finite(x: Tensor) -> bool:
    """Return whether all values of a float tensor are finite."""
    return bool(finite(x))


@operator()
def finite(x: Tensor) -> Tensor:
    """Return whether all values are finite, as a 0-d bool tensor.

    Only the minimum and the maximum are checked, which is six times as fast as checking every value. If a value is NaN,
    both of them are NaN.
    """
    return torch.stack(x.aminmax()).isfinite().all() if x.numel() else x.new_ones((), dtype=torch.bool)


@finite.fake
def _(x: Tensor) -> Tensor:
    return x.new_empty((), dtype=torch.bool)
