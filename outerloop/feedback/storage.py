"""How a residual is kept between rounds: float32, or 8 bits a value (LoCo, arXiv 2407.04480).

8 bits: blocks of 256 values share one float32 scale, max |e| / 127, so an entry is off by at most half a scale.

N values, B blocks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outerloop.types import Tensors, UserError

BLOCK = 256


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
        code_BL, scale_B1, shape = self.held[name]
        return (code_BL.float() * scale_B1).view(-1)[: shape.numel()].view(shape)

    def put(self, name: str, x: Tensor) -> None:
        """Keep x (any shape), rounded to nearest."""
        x_BL = torch.nn.functional.pad(x.reshape(-1).float(), (0, -x.numel() % BLOCK)).view(-1, BLOCK)
        scale_B1 = x_BL.abs().amax(1, keepdim=True) / 127
        code_BL = (x_BL / scale_B1.clamp(min=torch.finfo(torch.float32).tiny)).round().clamp(-127, 127).to(torch.int8)
        self.held[name] = code_BL, scale_B1, x.shape

    def clear(self) -> None:
        """Forget everything."""
        self.held = {}

    def state_dict(self) -> dict[str, Any]:
        """By name: codes, scales, shape."""
        return {name: [code, scale, list(shape)] for name, (code, scale, shape) in self.held.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.held = {name: (code, scale, torch.Size(shape)) for name, (code, scale, shape) in state.items()}


def storage_of(bits: int) -> Float32 | EightBit:
    """The storage of 32 or 8 bits a value. Raises UserError for another number."""
    if bits not in (8, 32):
        raise UserError(f"feedback.bits={bits} is not one of 8, 32: type feedback.bits=8")
    return EightBit() if bits == 8 else Float32()
