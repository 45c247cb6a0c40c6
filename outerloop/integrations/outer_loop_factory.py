"""Create the outer loop inside a Trainer, and determine whether its training is over. The callbacks create it when
training begins, once the Trainer has placed the model on its device and created the optimizer.
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

MakeOuterLoop = Callable[[Module, dict[str, Any] | None, dist.ProcessGroup | None, int | None], OuterLoop]
"""Function (model on its device, state to resume from, process group of the model's copies, number of inner steps) ->
outer loop.
"""


def outer_loop_factory(recipe: str, overrides: Sequence[str], arguments: RecipeArguments) -> MakeOuterLoop:
    """Return a function that calls `from_recipe` with these arguments.

    Raises TypeError at once, instead of when training begins, if an argument does not exist, and UserError if `steps`
    is among them.
    """
    if "steps" in (named := dict(arguments)):
        raise UserError(
            f"the callback got steps={named['steps']!r}, but the Trainer's max_steps sets steps: leave out steps="
        )
    signature(from_recipe).bind(recipe, None, *overrides, **arguments)

    def make(
        model: Module, state: dict[str, Any] | None, replicas: dist.ProcessGroup | None, steps: int | None
    ) -> OuterLoop:
        found = arguments.copy()
        if state is not None:
            found["state"] = state
        if replicas is not None:
            found["replicas"] = replicas
        return from_recipe(recipe, model, *overrides, steps=steps, **found)

    return make


def has_skipped_to_end(outer: OuterLoop, *, taken: int, steps: int | None) -> bool:
    """Return whether this peer has skipped inner steps and is therefore at the end of the run before its Trainer is.

    `taken`: number of optimizer steps of the Trainer. `steps`: number of steps after which the Trainer stops; None if
    nothing limits it. With a schedule that counts time-based steps, only the Trainer determines the end.
    """
    return steps is not None and not outer.schedule.step_s and taken < outer.inner_step >= steps


def refuse_sharded(processes: int) -> UserError:
    """Return the error for a Trainer that shards the model across its processes."""
    return UserError(
        f"this Trainer shards the model over {processes} processes, but the callback supports only full copies (DDP):"
        " call outerloop.from_recipe with the model under fully_shard in your own training loop"
    )
