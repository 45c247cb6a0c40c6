"""The global random state of torch, whole: CPU and, where it is in use, the accelerator."""

from __future__ import annotations

import torch
from torch import Tensor


def get_state() -> dict[str, Tensor]:
    """Device name -> generator state, uint8."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    if torch.backends.mps.is_available():
        states["mps"] = torch.mps.get_rng_state()
    return states


def set_state(states: dict[str, Tensor]) -> None:
    """The inverse of `get_state`."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])
    if "mps" in states:
        torch.mps.set_rng_state(states["mps"])
