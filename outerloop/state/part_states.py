"""Convert the state of an outer loop, which consists of one state for each of its parts, and load it into the parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outerloop.types import UserError


def on_device(state: Any, device: torch.device, *, copy: bool = False) -> Any:
    """Return nested dictionaries, lists and tuples with all tensors on a device.

    Tensors that are already on the device are copied only if `copy` is set.
    """
    if isinstance(state, Tensor):
        return state.to(device, copy=copy)
    if isinstance(state, dict):
        return {key: on_device(value, device, copy=copy) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(on_device(value, device, copy=copy) for value in state)
    return state


def wrap_parts(state: dict[str, Any]) -> dict[str, Any]:
    """Wrap every part of an outer loop's state in a tuple of length one, except weights and counters.

    torch.distributed.checkpoint loads only keys that the target state already has, but a new outer loop has no
    residual, no momentum and no rounds in flight. It treats a tuple as one value, and saves and loads it whole.
    """
    unwrapped = ("slow", "inner_step", "samples")
    return {key: part if key in unwrapped else (part,) for key, part in state.items()}


def unwrap_parts(state: dict[str, Any]) -> dict[str, Any]:
    """Undo `wrap_parts`. A state that was not wrapped is returned unchanged."""
    return {key: part[0] if isinstance(part, tuple) else part for key, part in state.items()}


def load_part(name: str, part: Any, state: dict[str, Any]) -> None:
    """Restore the state of one part of an outer loop. Raises UserError if another kind of this part saved it."""
    try:
        part.load_state_dict(state)
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"the saved state of {name} does not fit the {name} of this run ({error!r}): resume with the options of"
            " the run that saved it"
        ) from error
