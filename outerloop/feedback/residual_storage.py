"""Store residuals between rounds, as float32 or with 8 bits per value (kernels/eight_bit.py).

With 8 bits, each block of 256 values shares one float32 scale, max |e| / 127. The rounding error of a value is at most
half the scale of its block.

Sizes: N values, B blocks, L values per block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outerloop.kernels.eight_bit import BLOCK, from_eight_bit, to_eight_bit
from outerloop.types import Tensors, UserError


class Float32:
    """Exact storage, 4 bytes per value."""

    block = 1

    def __init__(self) -> None:
        self.stored: Tensors = {}

    def get(self, name: str) -> Tensor | None:
        """Return the last tensor stored under this name, or None if nothing is stored."""
        return self.stored.get(name)

    def put(self, name: str, x: Tensor) -> None:
        """Store x (any shape) under this name."""
        self.stored[name] = x

    def in_place(self, name: str) -> tuple[Tensor | None, None]:
        """Return the stored tensor, which the caller may modify in place, and None, because there are no scales."""
        return self.stored.get(name), None

    def put_zeros(self, name: str, like: Tensor) -> None:
        """Store zeros with the shape and device of `like` under this name."""
        self.stored[name] = torch.zeros_like(like)

    def move(self, name: str, device: torch.device) -> None:
        """Move the tensor stored under this name to the device, if there is one. A loaded one may be on another."""
        if name in self.stored:
            self.stored[name] = self.stored[name].to(device)

    def drop(self, name: str) -> None:
        """Remove the tensor stored under this name, if there is one."""
        self.stored.pop(name, None)

    def clear(self) -> None:
        """Remove all stored tensors."""
        self.stored = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the stored tensors by name."""
        return dict(self.stored)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state returned by `state_dict`. An entry may also be one of `EightBit`, which is dequantized."""
        self.stored = {name: dense(residual) for name, residual in state.items()}


class EightBit:
    """Quantized storage, about 1 byte per value. `block`: number of values that share one scale."""

    block = BLOCK

    def __init__(self) -> None:
        self.stored: dict[str, tuple[Tensor, Tensor, torch.Size]] = {}

    def get(self, name: str) -> Tensor | None:
        """Return the last tensor stored under this name, dequantized, or None if nothing is stored."""
        if name not in self.stored:
            return None
        return from_eight_bit(*self.stored[name])

    def put(self, name: str, x: Tensor) -> None:
        """Quantize x (any shape) to 8 bits, rounding to nearest, and store it under this name."""
        self.stored[name] = *to_eight_bit(x), x.shape

    def in_place(self, name: str) -> tuple[Tensor | None, Tensor | None]:
        """Return the stored codes (blocks, values) and scales (blocks, 1), which the caller may modify in place."""
        return self.stored[name][:2] if name in self.stored else (None, None)

    def put_zeros(self, name: str, like: Tensor) -> None:
        """Store zeros with the shape and device of `like` under this name."""
        blocks = -(-like.numel() // BLOCK)
        code_BL = like.new_zeros(blocks, BLOCK, dtype=torch.int8)
        self.stored[name] = code_BL, like.new_zeros(blocks, 1, dtype=torch.float32), like.shape

    def move(self, name: str, device: torch.device) -> None:
        """Move the tensor stored under this name to the device, if there is one. A loaded one may be on another."""
        if name in self.stored:
            code_BL, scale_B1, shape = self.stored[name]
            self.stored[name] = code_BL.to(device), scale_B1.to(device), shape

    def drop(self, name: str) -> None:
        """Remove the tensor stored under this name, if there is one."""
        self.stored.pop(name, None)

    def clear(self) -> None:
        """Remove all stored tensors."""
        self.stored = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the codes, scales and shape of each tensor, by name."""
        return {name: [code, scale, list(shape)] for name, (code, scale, shape) in self.stored.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state returned by `state_dict`. An entry may also be a float tensor, as returned by `dense`."""
        self.clear()
        for name, residual in state.items():
            if isinstance(residual, Tensor):
                self.put(name, residual)
            else:
                code, scale, shape = residual
                self.stored[name] = code, scale, torch.Size(shape)


def dense(stored: Any) -> Any:
    """Dequantize one entry of `EightBit.state_dict` to a float32 tensor. Return anything else unchanged."""
    match stored:
        case [Tensor(dtype=torch.int8) as code, scale, shape]:
            return from_eight_bit(code, scale, torch.Size(shape))
    return stored


def storage_of(bits: int) -> Float32 | EightBit:
    """Return a storage with 32 or 8 bits per value. Raises UserError for any other number."""
    if bits not in (8, 32):
        raise UserError(f"feedback.bits={bits} is not one of 8, 32: set feedback.bits=8")
    return EightBit() if bits == 8 else Float32()
