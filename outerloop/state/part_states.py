"""Convert the state of an outer loop, which consists of one state for each of its parts, and load it into the parts."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from outerloop.types import UserError, listed_names, printable

KEYS = ("slow", "inner_step", "samples", "in_flight")
"""Keys that the state of an outer loop has in every version. Parts may be missing in older checkpoints."""


def check_state(state: object) -> None:
    """Check that `state` is the state of an outer loop. Raises UserError, which states what to pass instead."""
    if not isinstance(state, Mapping):
        load_first = ': load the file first, and pass state=saved["outer"]' if isinstance(state, str | PathLike) else ""
        raise UserError(f"state is a {type(state).__name__}, but must be the result of outer.state_dict(){load_first}")
    if is_state(state):
        return
    keys = listed_names([printable(str(key)) for key in state])
    found = f"has the keys {keys}" if state else "is empty"
    nested = [key for key, value in state.items() if is_state(value)]
    advice = f"pass state=saved[{nested[0]!r}]" if nested else "to start from the beginning, pass no state"
    raise UserError(f"state {found}, but must be the result of outer.state_dict(): {advice}")


def is_state(value: object) -> bool:
    """Return whether a value has the keys of an outer loop's state."""
    return isinstance(value, Mapping) and all(key in value for key in KEYS)


def check_fragments(state: Mapping[str, Any], fragments: int) -> None:
    """Check that the state of an outer loop is of a schedule with this many fragments. Raises UserError otherwise."""
    saved = state["samples"]
    if isinstance(saved, list) and len(saved) != fragments:  # a single number in older checkpoints
        raise UserError(
            f"the model has {len(saved)} fragment(s) in the saved run and {fragments} in this run: resume with the"
            " recipe and the schedule of the run that saved the state"
        )


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
    """Restore the state of one part of an outer loop. Raises UserError if a part of another class saved it."""
    try:
        part.load_state_dict(state)
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"the saved state of {name} does not fit the {name} of this run ({error!r}): resume with the options of"
            " the run that saved it"
        ) from error
