"""Define a residual with 8 bits per value (LoCo, arXiv 2407.04480), and how it is read and written.

    scale = max |x| / 127 of 256 consecutive values;  code = round(x / scale), half to even;  x̂ = code · scale

No code is outside -127 .. 127, because the rounding error of x / scale is far below one half. If the scale is denormal,
x is divided by the smallest normal float32 instead, so the codes are smaller. NaN becomes code 0, because the
conversion of NaN to an integer depends on the machine.

A tensor is cut into blocks in memory order; the last block is padded with zeros.
Sizes: N values, B blocks, L values per block.
"""

from __future__ import annotations

import torch
from torch import Size, Tensor
from torch.nn.functional import pad

BLOCK = 256
"""Number of values that share a scale."""
TOP = 127.0
"""The largest code."""


def to_eight_bit(x: Tensor) -> tuple[Tensor, Tensor]:
    """Encode finite values of any shape as int8 codes (B, 256) and float32 scales (B, 1), for B blocks.

    All divisors are tensors, because a GPU divides a tensor by a Python number by multiplying with its reciprocal,
    which rounds differently.
    """
    x_BL = pad(x.reshape(-1).float(), (0, -x.numel() % BLOCK)).view(-1, BLOCK)
    size_B1 = x_BL.abs().amax(1, keepdim=True)
    scale_B1 = size_B1 / torch.full_like(size_B1, TOP)
    ratio_BL = x_BL / scale_B1.clamp(min=torch.finfo(torch.float32).tiny)
    return ratio_BL.round_().nan_to_num_(nan=0.0).to(torch.int8), scale_B1


def from_eight_bit(code_BL: Tensor, scale_B1: Tensor, shape: Size) -> Tensor:
    """Decode the codes and scales from `to_eight_bit` to a float32 tensor of this shape."""
    return (code_BL * scale_B1).view(-1)[: shape.numel()].view(shape)


def read_residual(residual: Tensor, scale: Tensor | None, shape: Size) -> Tensor:
    """Return a residual as float32: unchanged if `scale` is None, otherwise decoded from its codes and scales."""
    return residual if scale is None else from_eight_bit(residual, scale, shape)


def write_residual(x: Tensor, residual: Tensor, scale: Tensor | None) -> None:
    """Write x into a residual in place, encoded as codes and scales unless `scale` is None."""
    if scale is None:
        residual.copy_(x)
        return
    code_BL, scale_B1 = to_eight_bit(x)
    residual.copy_(code_BL)
    scale.copy_(scale_B1)
