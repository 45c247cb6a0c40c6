"""Check an outer method's state that was received from another machine, before any part of it is loaded.

counts       {name of a slow weight: rounds}                                     integers, 0 .. MOST_ROUNDS
torch        {"state": {index of a parameter: {...}}, "param_groups": [...]}     the state of OuterOptimizer
  group      equal to the local group, except that a setting that changes with the rounds may be any finite number
  tensor     finite. In SGD and AdamW it has the parameter's shape and dtype, except "step", which is a scalar.
             In any other optimizer it is not larger than the parameter.
  v          (exp_avg_sq of AdamW) not negative, because its square root is computed
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from outerloop.methods.outer_optimizer import OuterOptimizer
from outerloop.types import Tensors

MOST_ROUNDS = 1 << 40
"""Upper limit on round counts, more than any run reaches."""
REAL = {torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32}
"""Allowed tensor dtypes. Values of other dtypes have no order, or torch does not support the checks for them."""
SCALAR = "step"
KEYS = {torch.optim.SGD: {"momentum_buffer"}, torch.optim.AdamW: {SCALAR, "exp_avg", "exp_avg_sq"}}
"""Optimizer with a bit-exact rule (outer_optimizer.RULES) -> keys of its state per parameter."""


def check_method(method: Any, received: Any, slow: Tensors) -> None:
    """Check that a received state fits this method. Raises ValueError, KeyError or TypeError if it does not."""
    own = method.state_dict()
    if not isinstance(received, dict) or received.keys() != own.keys():
        raise ValueError(f"the outer method's state must be a map with the keys {', '.join(sorted(own))}")
    for key, value in received.items():
        if key == "optimizer" and isinstance(method, OuterOptimizer):
            free = {key for key, factor in method.factors.items() if factor}
            keys = KEYS.get(type(method.optimizer)) if method.rule else None
            check_optimizer(method.optimizer, value, slow, keys, free)
        elif key == "rounds":
            check_counts(value, slow)
        else:
            check_like(value, own[key], f"the outer method's {key}")


def check_counts(received: Any, slow: Tensors) -> None:
    """Check the received update counts. Raises ValueError if one is out of range or for an unknown parameter."""
    if not isinstance(received, dict) or not received.keys() <= slow.keys():
        raise ValueError("the outer method's round counts are for different parameters")
    if bad := [name for name, count in received.items() if type(count) is not int or not 0 <= count <= MOST_ROUNDS]:
        raise ValueError(
            f"the outer method's round count of {bad[0]} must be 0 to {MOST_ROUNDS}, received {received[bad[0]]!r:.40}"
        )


def check_optimizer(optimizer: Any, received: Any, slow: Tensors, keys: set[str] | None, free: set[str]) -> None:
    """Check the received state of a torch optimizer.

    keys: allowed state keys per parameter; None allows any keys.
    free: settings that may differ from the local ones.
    """
    own = optimizer.state_dict()
    groups = own["param_groups"]
    if not isinstance(received, dict) or received.keys() != {"state", "param_groups"}:
        raise ValueError("the outer optimizer's state must be a map with the keys state and param_groups")
    if not isinstance(received["param_groups"], list) or len(received["param_groups"]) != len(groups):
        raise ValueError(f"the outer optimizer must have {len(groups)} parameter groups")
    for group, own_group in zip(received["param_groups"], groups, strict=True):
        check_group(group, own_group, free)
    parameters = [x for group in optimizer.param_groups for x in group["params"]]
    indices = range(len(parameters))
    if not isinstance(received["state"], dict) or not all(type(i) is int and i in indices for i in received["state"]):
        raise ValueError("the outer optimizer's state is for different parameters")
    names = {id(x): name for name, x in slow.items()}
    for index, state in received["state"].items():
        check_parameter(state, parameters[index], names.get(id(parameters[index]), f"parameter {index}"), keys)


def check_group(received: Any, own: Mapping[str, Any], free: set[str]) -> None:
    """Check the settings of one received parameter group. Those in `free` may be any finite numbers."""
    if not isinstance(received, dict) or received.keys() != own.keys():
        raise ValueError("a parameter group of the outer optimizer does not have the same settings as the local one")
    for key, expected in own.items():
        value = received[key]
        if key in free:
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"the outer optimizer's {key} is not a finite number")
        elif (list(value) if isinstance(value, list | tuple) else value) != (
            list(expected) if isinstance(expected, list | tuple) else expected
        ):
            raise ValueError(f"the outer optimizer's {key} is {value!r:.40}, expected {expected!r:.40}")


def check_parameter(state: Any, x: Tensor, name: str, keys: set[str] | None) -> None:
    """Check the optimizer state of one parameter x.

    keys: allowed keys; all tensors but "step" must then have the shape of x. None, for an optimizer without a rule,
        allows any keys.
    """
    if not isinstance(state, dict) or not (keys is None or state.keys() <= keys):
        raise ValueError(
            f"the outer optimizer's state of {name} must be a map of {', '.join(sorted(keys or ())) or 'any keys'}"
        )
    if keys and SCALAR in keys and state and state.keys() != keys:
        raise ValueError(
            f"the outer optimizer's state of {name} must contain all of {', '.join(sorted(keys))}, or nothing"
        )
    for key, value in state.items():
        what = f"the outer optimizer's {key} of {name}"
        shape = torch.Size() if key == SCALAR else x.shape
        if isinstance(value, Tensor):
            fits = value.numel() <= max(1, x.numel()) if keys is None else value.shape == shape
            check_tensor(value, what, None if keys is None or key == SCALAR else x.dtype, fits=fits)
            if key in (SCALAR, "exp_avg_sq") and not bool((value >= 0).all()):
                raise ValueError(f"{what} is negative")
            if key == SCALAR and not bool((value <= MOST_ROUNDS).all()):
                raise ValueError(f"{what} is more than {MOST_ROUNDS}")
        elif value is not None or (keys and key != "momentum_buffer"):
            check_plain(value, what, allowed=keys is None)


def check_tensor(value: Tensor, what: str, dtype: torch.dtype | None, *, fits: bool) -> None:
    if not fits:
        raise ValueError(f"{what} has the wrong shape {tuple(value.shape)}")
    if dtype is not None and value.dtype != dtype:
        raise ValueError(f"{what} is {value.dtype}, expected {dtype}")
    if value.dtype not in REAL:
        raise ValueError(f"{what} is {value.dtype}, which is not supported")
    if not bool(value.isfinite().all()):
        raise ValueError(f"{what} is not finite")


def check_plain(value: Any, what: str, *, allowed: bool) -> None:
    if not allowed or not isinstance(value, int | float) or not math.isfinite(value):
        wrong = "neither a tensor nor a finite number" if allowed else "not a tensor"
        raise ValueError(f"{what} is {wrong}: {value!r:.40}")


def check_like(received: Any, own: Any, what: str) -> None:
    """Check that a received map name -> tensor has the names, dtypes and shapes of the local map `own`."""
    if not isinstance(received, dict) or not isinstance(own, dict) or received.keys() != own.keys():
        raise ValueError(f"{what} is for different parameters")
    for name, x in own.items():
        if not isinstance(received[name], Tensor):
            raise ValueError(f"{what} of {name} is not a tensor")
        check_tensor(received[name], f"{what} of {name}", x.dtype, fits=received[name].shape == x.shape)
