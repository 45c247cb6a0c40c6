"""Create a recipe's inner optimizer for the user's own training loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig
from torch.nn import Module
from torch.optim import Optimizer

from outerloop.config import build, load
from outerloop.config.option_mapping import refuse_inapplicable, refuse_options, to_overrides
from outerloop.replica.island import trainable_parameters
from outerloop.replica.sharding import unwrap
from outerloop.types import UserError

REASONS = {
    f"inner.{name}": "your program's training loop warms up and decays the learning rate, and clips gradients"
    for name in ("warmup_steps", "lr_schedule", "lr_floor", "clip_norm")
}
"""Option of `inner` -> why it does not apply to an inner optimizer without outerloop's own inner trainer."""


def recipe_optimizer(
    recipe: str, model: Module, *overrides: str, options: Mapping[str, Any] | DictConfig | None = None
) -> Optimizer:
    """Create a recipe's inner optimizer for the trainable parameters of a model, which must be on its training device.

    The recipes muloco and outerloop use Muon for the matrices of the layers and AdamW for all other parameters; most
    other recipes use AdamW. Learning-rate warm-up, decay and gradient clipping are left to your training loop.

    Args:
        recipe: name of a recipe.
        model: the model that is also passed to `from_recipe`.
        overrides: options of the inner optimizer, as on the command line: "inner.lr=1e-3".
        options: options as a mapping: {"inner.lr": 1e-3}.

    Raises:
        UserError: if an option is invalid or does not apply, or if the recipe takes no inner steps and exchanges
            gradients instead.
    """
    typed = [*overrides, *to_overrides(options)]
    settings = load.load([f"recipe={recipe}", *typed])
    refuse_inapplicable(typed, {"inner"}, "an inner optimizer")
    refuse_options(typed, REASONS, "an inner optimizer")
    if load.inner_optimizer(settings) is None:
        raise UserError(
            f"recipe={recipe} takes no inner steps, so it needs no inner optimizer:"
            " the outer loop applies the mean gradient of all peers"
        )
    return build.make_optimizer_factory(settings)(list(trainable_parameters(unwrap(model)).items()))
