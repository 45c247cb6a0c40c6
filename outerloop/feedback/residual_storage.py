"""How a residual is kept between rounds: float32, or 8 bits a value (kernels/eight_bit.py).

8 bits: blocks of 256 values share one float32 scale, max |e| / 127, so an entry is off by at most half a scale.

N values, B blocks, L values a block.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outerloop.kernels.eight_bit import BLOCK, from_eight_bit, to_eight_bit
from outerloop.types import Tensors, UserError


class Float32:
    """4 bytes a value, exact."""

    def __init__(self) -> None:
        self.held: Tensors = {}

    def get(self, name: str) -> Tensor | None:
        """What was put last under this name; None before the first."""
        return self.held.get(name)

    def put(self, name: str, x: Tensor) -> None:
        """Keep x (any shape)."""
        self.held[name] = x

    def in_place(self, name: str) -> tuple[Tensor | None, None]:
        """What is held, to be changed by who asks, and no scales."""
        return self.held.get(name), None

    def put_zeros(self, name: str, like: Tensor) -> None:
        """Keep zeros of the shape and on the device of `like`."""
        self.held[name] = torch.zeros_like(like)

    def clear(self) -> None:
        """Forget everything."""
        self.held = {}

    def state_dict(self) -> dict[str, Any]:
        """By name."""
        return dict(self.held)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.held = dict(state)


class EightBit:
    """About 1 byte a value."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[Tensor, Tensor, torch.Size]] = {}

    def get(self, name: str) -> Tensor | None:
        """What was put last under this name, to 8 bits; None before the first."""
        if name not in self.held:
            return None
        return from_eight_bit(*self.held[name])

    def put(self, name: str, x: Tensor) -> None:
        """Keep x (any shape), rounded to nearest."""
        self.held[name] = *to_eight_bit(x), x.shape

    def in_place(self, name: str) -> tuple[Tensor | None, Tensor | None]:
        """What is held, to be changed by who asks: codes (B, L) and scales (B, 1)."""
        return self.held[name][:2] if name in self.held else (None, None)

    def put_zeros(self, name: str, like: Tensor) -> None:
        """Keep zeros of the shape and on the device of `like`."""
        blocks = -(-like.numel() // BLOCK)
        code_BL = like.new_zeros(blocks, BLOCK, dtype=torch.int8)
        self.held[name] = code_BL, like.new_zeros(blocks, 1, dtype=torch.float32), like.shape

    def clear(self) -> None:
        """Forget everything."""
        self.held = {}

    def state_dict(self) -> dict[str, Any]:
        """By name: codes, scales, shape."""
        return {name: [code, scale, list(shape)] for name, (code, scale, shape) in self.held.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned, or the same as `dense` tensors."""
        self.clear()
        for name, held in state.items():
            if isinstance(held, Tensor):
                self.put(name, held)
            else:
                code, scale, shape = held
                self.held[name] = code, scale, torch.Size(shape)


def dense(held: Any) -> Any:
    """What `EightBit.state_dict` has under one name as a float32 tensor; anything else as it is."""
    if isinstance(held, list) and len(held) == 3 and isinstance(held[0], Tensor) and held[0].dtype == torch.int8:
        return from_eight_bit(held[0], held[1], torch.Size(held[2]))
    return held


def storage_of(bits: int) -> Float32 | EightBit:
    """The storage of 32 or 8 bits a value. Raises UserError for another number."""
    if bits not in (8, 32):
        raise UserError(f"feedback.bits={bits} is not one of 8, 32: type feedback.bits=8")
    return EightBit() if bits == 8 else Float32()
