"""Save and restore torch's global random state: of the CPU and one device, or of all accelerators in use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def get_state() -> dict[str, Tensor]:
    """Return a map from device type to generator state (uint8). The CUDA state has one row per device."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.stack(torch.cuda.get_rng_state_all())
    if torch.backends.mps.is_available():
        states["mps"] = torch.mps.get_rng_state()
    return states


@contextmanager
def preserved() -> Iterator[None]:
    """Restore, on exit, the random state that `get_state` returns on entry."""
    states = get_state()
    try:
        yield
    finally:
        set_state(states)


def get_device_state(device: torch.device) -> dict[str, Tensor]:
    """Return the generator states (uint8) that affect training on `device`: "cpu" and, on an accelerator, "device".

    The result does not depend on the number of devices of the machine, or on the index of `device`.
    """
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["device"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        states["device"] = torch.mps.get_rng_state()
    return states


def set_device_state(device: torch.device, states: dict[str, Tensor]) -> None:
    """Restore the generator states that `get_device_state` returned, on a device of the same type."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["device"], device)
    elif device.type == "mps":
        torch.mps.set_rng_state(states["device"])


def set_state(states: dict[str, Tensor]) -> None:
    """Restore the generator states that `get_state` returned, except those of devices that this machine lacks."""
    torch.set_rng_state(states["cpu"])
    if "cuda" in states:
        for device, state in zip(range(torch.cuda.device_count()), states["cuda"], strict=False):
            torch.cuda.set_rng_state(state, device)
    if "mps" in states and torch.backends.mps.is_available():
        torch.mps.set_rng_state(states["mps"])
