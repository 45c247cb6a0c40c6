"""A residual in 8 bits a value (LoCo, arXiv 2407.04480), and what the passes read and write: the definition.

    scale = max |x| / 127 of 256 consecutive values;  code = round(x / scale), half to even;  x̂ = code · scale

No code is beyond ± 127: the quotient's error is far from a half. Where a scale would be denormal the codes are smaller.
NaN becomes code 0: what a NaN is as an integer would depend on the machine.

A tensor is cut as it lies in memory; the last block is filled up with zeros.
N values, B blocks, L values a block.
"""

from __future__ import annotations

import torch
from torch import Size, Tensor
from torch.nn.functional import pad

BLOCK = 256
"""Values that share a scale."""
TOP = 127.0
"""The largest code."""


def to_eight_bit(x: Tensor) -> tuple[Tensor, Tensor]:
    """(N finite values, any shape) -> code (B, L) int8 and scale (B, 1) float32.

    Divided by tensors: what is divided by a number a GPU multiplies with the reciprocal, which rounds otherwise.
    """
    x_BL = pad(x.reshape(-1).float(), (0, -x.numel() % BLOCK)).view(-1, BLOCK)
    size_B1 = x_BL.abs().amax(1, keepdim=True)
    scale_B1 = size_B1 / torch.full_like(size_B1, TOP)
    ratio_BL = x_BL / scale_B1.clamp(min=torch.finfo(torch.float32).tiny)
    return ratio_BL.round_().nan_to_num_(nan=0.0).to(torch.int8), scale_B1


def from_eight_bit(code_BL: Tensor, scale_B1: Tensor, shape: Size) -> Tensor:
    """The inverse: float32 of `shape`."""
    return (code_BL * scale_B1).view(-1)[: shape.numel()].view(shape)


def read_residual(residual: Tensor, scale: Tensor | None, shape: Size) -> Tensor:
    """A residual as float32: as it is, or from codes and their scales."""
    return residual if scale is None else from_eight_bit(residual, scale, shape)


def write_residual(x: Tensor, residual: Tensor, scale: Tensor | None) -> None:
    """The inverse, in place."""
    if scale is None:
        residual.copy_(x)
        return
    code_BL, scale_B1 = to_eight_bit(x)
    residual.copy_(code_BL)
    scale.copy_(scale_B1)
