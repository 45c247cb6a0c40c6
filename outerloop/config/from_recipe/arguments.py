"""Check the arguments of `from_recipe`, and turn them into settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from omegaconf import DictConfig
from torch.nn import Module

from outerloop.config import build, load
from outerloop.types import UserError

FLATTENED = ("FullyShardedDataParallel", "DeepSpeedEngine")
"""Class names of wrappers that replace a model's parameters with slices of flattened parameters."""


def check_arguments(recipe: object, model: object, overrides: Sequence[object], exchange: object) -> None:
    """Check the types of arguments that are often confused. Raises UserError, which states what to pass instead."""
    if not isinstance(recipe, str) or not isinstance(model, Module):
        raise UserError(
            f"from_recipe takes the name of a recipe and a torch.nn.Module, but got a {type(recipe).__name__} and a"
            f' {type(model).__name__}: call outerloop.from_recipe("sparseloco", model)'
        )
    for override in overrides:
        if not isinstance(override, str):
            raise UserError(
                f'an option was passed as a {type(override).__name__}: pass text such as "exchange.port=4242", or a'
                ' mapping as options={"exchange.port": 4242}'
            )
    if any(type(module).__name__ in FLATTENED for module in model.modules()):
        raise UserError(
            "FullyShardedDataParallel or DeepSpeed has flattened the parameters of this model, which hides them:"
            " shard the model with torch.distributed.fsdp.fully_shard (FSDP2) instead"
        )
    if isinstance(exchange, str | Mapping | type):
        kind = exchange.__name__ if isinstance(exchange, type) else repr(exchange)
        raise UserError(
            f"exchange={kind} is not an exchange that has joined: pass an object such as"
            ' outerloop.Distributed(), or name the exchange with the option "exchange=swarm_gather"'
        )


def load_settings(recipe: str, overrides: Sequence[str], *, over_group: bool) -> DictConfig:
    """Return the validated settings of a recipe. Raises UserError if a setting is invalid.

    `over_group`: select an exchange over torch.distributed, unless the overrides set an exchange.
    """
    settings = load.load([f"recipe={recipe}", *overrides])
    if over_group and settings.workers_as != "ranks":
        kind = "distributed" if build.capabilities(settings).agrees else "distributed_gossip"
        settings = load.load([f"recipe={recipe}", f"exchange={kind}", *overrides])
    return settings
