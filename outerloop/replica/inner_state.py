"""Get and set the state of a model and its inner optimizer, in the form that torch.distributed.checkpoint stores.

torch initializes the state of an optimizer by taking a step. Here, this step calls no hooks, so that an attached outer
loop does not count it, and it leaves no state when an optimizer without a state is saved.

A parameter that has had no gradient so far has no optimizer state, neither in the checkpoint nor after loading.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.nn import Module
from torch.optim import Optimizer


def inner_state(optimizer: Optimizer | None, model: Module, *, saved: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the state dicts of the model and the inner optimizer.

    saved: the names of the entries of a checkpoint; the result then has the optimizer state of the parameters that have
        one in the checkpoint, so that it can be read into the result. None for the current state.
    """
    state: dict[str, Any] = {"model": get_model_state_dict(model)}
    if optimizer is None:
        return state
    is_new = not optimizer.state
    with without_step_hooks(optimizer):
        inner: dict[str, Any] = dict(get_optimizer_state_dict(model, optimizer))
    if is_new:
        optimizer.state.clear()
    if saved is not None:
        held = {path for name in saved for path in accumulate(name.split("."), "{}.{}".format)}
        inner["state"] = {name: x for name, x in inner["state"].items() if f"optimizer.state.{name}" in held}
    elif is_new:
        inner["state"] = {}
    return state | {"optimizer": inner}


def set_inner_state(state: dict[str, Any], optimizer: Optimizer | None, model: Module) -> None:
    """Load a result of `inner_state` into the model and the inner optimizer."""
    set_model_state_dict(model, state["model"])
    if optimizer is not None:
        options = StateDictOptions(strict=False)  # with strict=True, each parameter must have an optimizer state
        with without_step_hooks(optimizer):
            set_optimizer_state_dict(model, optimizer, state["optimizer"], options=options)


@contextmanager
def without_step_hooks(optimizer: Optimizer) -> Iterator[None]:
    """Remove the step hooks of an optimizer inside the block."""
    hooked = getattr(optimizer, "optimizer", optimizer)  # accelerate's wrapper has no hooks, the wrapped optimizer has
    names = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    hooks = {name: getattr(hooked, name) for name in names}
    vars(hooked).update({name: OrderedDict() for name in names})
    try:
        yield
    finally:
        vars(hooked).update(hooks)
