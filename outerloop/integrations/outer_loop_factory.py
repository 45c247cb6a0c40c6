"""Create the outer loop inside a Trainer. The callbacks do so when training begins, once the Trainer has placed the
model on its device and created the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

from torch import distributed as dist
from torch.nn import Module

from outerloop.config.from_recipe import RecipeArguments, from_recipe
from outerloop.core.outer_loop import OuterLoop
from outerloop.types import UserError

MakeOuterLoop = Callable[[Module, dict[str, Any] | None, dist.ProcessGroup | None], OuterLoop]
"""Function (model on its device, state to resume from, process group of the model's copies) -> outer loop."""


def outer_loop_factory(recipe: str, overrides: Sequence[str], arguments: RecipeArguments) -> MakeOuterLoop:
    """Return a function that calls `from_recipe` with these arguments.

    Raises TypeError at once, instead of when training begins, if an argument does not exist.
    """
    signature(from_recipe).bind(recipe, None, *overrides, **arguments)

    def make(model: Module, state: dict[str, Any] | None, replicas: dist.ProcessGroup | None) -> OuterLoop:
        found = arguments.copy()
        if state is not None:
            found["state"] = state
        if replicas is not None:
            found["replicas"] = replicas
        return from_recipe(recipe, model, *overrides, **found)

    return make


def refuse_sharded(processes: int) -> UserError:
    """Return the error for a Trainer that shards the model across its processes."""
    return UserError(
        f"this Trainer shards the model over {processes} processes, but the callback supports only full copies (DDP):"
        " call outerloop.from_recipe with the model under fully_shard in your own training loop"
    )
