"""Check an outer method's state that another machine sent, whole and before anything takes it over.

counts       {name of one of the slow weights: rounds}                           whole numbers, 0 .. MOST_ROUNDS
of several   {"parts": [of torch, ...]}                                          as inner/muon.py
of torch     {"state": {place of a parameter: {...}}, "param_groups": [...]}     of OuterOptimizer
  group      as here; a setting that follows the rounds may differ, and is a finite number
  tensor     finite; of SGD and AdamW in the parameter's shape and dtype, apart from the scalar step
             of any other optimizer not larger than the parameter
  v          of AdamW (exp_avg_sq) never negative: the step takes its square root
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
"""No run comes so far."""
REAL = {torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32}
"""What a tensor may be that has no dtype of its own here: the others have no order, or no operations."""
SCALAR = "step"
KEYS = {torch.optim.SGD: {"momentum_buffer"}, torch.optim.AdamW: {SCALAR, "exp_avg", "exp_avg_sq"}}
"""Of the optimizers whose steps are computed here, what each keeps of a parameter."""


def check_method(method: Any, came: Any, slow: Tensors) -> None:
    """Raises ValueError, KeyError or TypeError naming what of a method's state cannot be this method's here."""
    own = method.state_dict()
    if not isinstance(came, dict) or came.keys() != own.keys():
        raise ValueError(f"the outer method's state is a map of {', '.join(sorted(own))}")
    for key, value in came.items():
        if key == "optimizer" and isinstance(method, OuterOptimizer):
            free = {key for key, factor in method.factors.items() if factor}
            keys = KEYS.get(type(method.optimizer)) if method.rule else None
            check_optimizer(method.optimizer, value, slow, keys, free)
        elif key == "rounds":
            check_counts(value, slow)
        else:
            check_like(value, own[key], f"the outer method's {key}")


def check_counts(came: Any, slow: Tensors) -> None:
    """How many updates each fragment, or parameter, has had."""
    if not isinstance(came, dict) or not came.keys() <= slow.keys():
        raise ValueError("the outer method's rounds are of other parameters")
    if bad := [name for name, count in came.items() if type(count) is not int or not 0 <= count <= MOST_ROUNDS]:
        raise ValueError(f"the outer method's rounds of {bad[0]} are no number of rounds: {came[bad[0]]!r:.40}")


def check_optimizer(optimizer: Any, came: Any, slow: Tensors, keys: set[str] | None, free: set[str]) -> None:
    """What torch keeps of an optimizer. `keys`: of a parameter; `free`: settings that may differ."""
    own = optimizer.state_dict()
    if own.keys() == {"parts"}:
        if not isinstance(came, dict) or came.keys() != own.keys() or len(came["parts"]) != len(optimizer.parts):
            raise ValueError(f"the outer optimizer is made of {len(optimizer.parts)} others here")
        for one, there in zip(optimizer.parts, came["parts"], strict=True):
            check_optimizer(one, there, slow, None, free)
        return
    groups = own["param_groups"]
    if not isinstance(came, dict) or came.keys() != {"state", "param_groups"}:
        raise ValueError("the outer optimizer's state is a map of state and param_groups")
    if not isinstance(came["param_groups"], list) or len(came["param_groups"]) != len(groups):
        raise ValueError(f"the outer optimizer has {len(groups)} groups of parameters here")
    for there, here in zip(came["param_groups"], groups, strict=True):
        check_group(there, here, free)
    parameters = [x for group in optimizer.param_groups for x in group["params"]]
    places = range(len(parameters))
    if not isinstance(came["state"], dict) or not all(type(i) is int and i in places for i in came["state"]):
        raise ValueError("the outer optimizer's state is of other parameters")
    names = {id(x): name for name, x in slow.items()}
    for place, held in came["state"].items():
        check_held(held, parameters[place], names.get(id(parameters[place]), f"parameter {place}"), keys)


def check_group(there: Any, here: Mapping[str, Any], free: set[str]) -> None:
    """Settings of one group of parameters."""
    if not isinstance(there, dict) or there.keys() != here.keys():
        raise ValueError("a group of the outer optimizer has other settings than here")
    for key, own in here.items():
        value = there[key]
        if key in free:
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"the outer optimizer's {key} is no finite number")
        elif (list(value) if isinstance(value, list | tuple) else value) != (
            list(own) if isinstance(own, list | tuple) else own
        ):
            raise ValueError(f"the outer optimizer's {key} is {value!r:.40} there and {own!r:.40} here")


def check_held(held: Any, x: Tensor, name: str, keys: set[str] | None) -> None:
    """What is kept of one parameter x of this name.

    `keys`: what may be, all of its shape but the step; None: any optimizer's.
    """
    if not isinstance(held, dict) or not (keys is None or held.keys() <= keys):
        raise ValueError(f"the outer optimizer keeps {', '.join(sorted(keys or ())) or 'a map'} alone of {name}")
    if keys and SCALAR in keys and held and held.keys() != keys:
        raise ValueError(f"the outer optimizer keeps all of {', '.join(sorted(keys))} of {name}, or nothing")
    for key, value in held.items():
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
        raise ValueError(f"{what} has the shape {tuple(value.shape)}")
    if dtype is not None and value.dtype != dtype:
        raise ValueError(f"{what} is {value.dtype} there and {dtype} here")
    if value.dtype not in REAL:
        raise ValueError(f"{what} is {value.dtype}, no real number")
    if not bool(value.isfinite().all()):
        raise ValueError(f"{what} is not finite")


def check_plain(value: Any, what: str, *, allowed: bool) -> None:
    if not allowed or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{what} is no tensor: {value!r:.40}")


def check_like(came: Any, own: Any, what: str) -> None:
    """A map of tensors as the own one, by name."""
    if not isinstance(came, dict) or not isinstance(own, dict) or came.keys() != own.keys():
        raise ValueError(f"{what} is of other parameters")
    for name, x in own.items():
        if not isinstance(came[name], Tensor):
            raise ValueError(f"{what} of {name} is no tensor")
        check_tensor(came[name], f"{what} of {name}", x.dtype, fits=came[name].shape == x.shape)
