"""Check the arguments of `from_recipe`, and turn them into settings."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

from omegaconf import DictConfig, ListConfig
from torch import distributed as dist
from torch.nn import Module

from outerloop.config import build, load
from outerloop.types import UserError

FLATTENED = ("FullyShardedDataParallel", "DeepSpeedEngine")
"""Class names of wrappers that replace a model's parameters with slices of flattened parameters."""


def check_arguments(recipe: object, model: object, overrides: Sequence[object], steps: object) -> None:
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
    if steps is not None:
        check_steps(steps, "the number of inner steps after which your loop ends, or None")


def check_steps(steps: object, advice: str) -> None:
    """Raise UserError if `steps` is not a whole number, 1 or more. `advice`: which number to pass instead."""
    if not isinstance(steps, Integral) or isinstance(steps, bool) or int(steps) < 1:
        raise UserError(f"steps={steps!r} must be a whole number of inner steps, 1 or more: pass {advice}")


def check_connection(exchange: object, mesh: object, dim: object, replicas: object) -> None:
    """Check the arguments that select processes or an exchange. Raises UserError, which states what to pass instead."""
    if exchange is not None and (isinstance(exchange, type) or not hasattr(exchange, "start")):
        kind = exchange.__name__ if isinstance(exchange, type) else repr(exchange)
        raise UserError(
            f"exchange={kind} is not an exchange object: pass an instance such as"
            ' outerloop.Distributed(), or name the exchange with the option "exchange=swarm_gather"'
        )
    if mesh is not None and not hasattr(mesh, "mesh_dim_names"):  # DeviceMesh is not imported: this takes a second
        raise UserError(
            f"mesh is a {type(mesh).__name__}, but must be a DeviceMesh: pass the result of"
            " torch.distributed.device_mesh.init_device_mesh"
        )
    if mesh is not None and exchange is not None:
        raise UserError("mesh= and exchange= are both set, and each selects an exchange: pass only one of them")
    if dim is not None and mesh is None:
        raise UserError(
            f"dim={dim!r} selects a dimension of mesh=, which is not set: pass mesh=MESH, or leave out dim="
        )
    if replicas is not None and not isinstance(replicas, dist.ProcessGroup):
        raise UserError(
            f"replicas is a {type(replicas).__name__}, but must be a process group that contains this process: pass the"
            " result of torch.distributed.new_group on its ranks"
        )


def address_list(initial_peers: object) -> list[str]:
    """Return the addresses of running peers as a list. Raises UserError if they are not text."""
    addresses = [initial_peers] if isinstance(initial_peers, str) else initial_peers
    if not isinstance(addresses, list | tuple | set | ListConfig) or not all(isinstance(x, str) for x in addresses):
        raise UserError(
            f"initial_peers={initial_peers!r} must be the address of a running peer, or a list of addresses: pass text"
            ' such as "/ip4/192.0.2.1/tcp/4242/p2p/12D3KooW...", or leave it out on the first peer'
        )
    return list(addresses)


def load_settings(recipe: str, overrides: Sequence[str], *, over_group: bool, steps: int | None) -> DictConfig:
    """Return the validated settings of a recipe. Raises UserError if a setting is invalid.

    `over_group`: select an exchange over torch.distributed, unless the overrides set an exchange.
    `steps`: number of inner steps of the run. If the recipe has no inner optimizer, it exchanges gradients in every
    step, and the learning-rate schedule of its method ends after this number of rounds, unless the overrides set one.
    """
    options = [f"recipe={recipe}", *overrides]
    settings = load.load(options)
    if over_group and settings.workers_as != "ranks":
        kind = "distributed" if build.capabilities(settings).agrees else "distributed_gossip"
        options.insert(1, f"exchange={kind}")
        settings = load.load(options)
    sets_rounds = any(override.partition("=")[0].lstrip("+") == "rounds" for override in overrides)
    if steps is not None and not sets_rounds and load.inner_optimizer(settings) is None:
        settings = load.load([*options, f"rounds={steps}"])
    return settings
