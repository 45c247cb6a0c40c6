"""outerloop: train one model on machines that are far apart.

Workers take many inner steps independently; every H steps, the outer loop exchanges compressed pseudo-gradients.

Use in your own training loop:

    with outerloop.from_recipe("sparseloco", model, peers=4, steps=3000) as outer:
        outerloop.attach(optimizer, outer)
        while outer.inner_step < 3000:
            ...

To choose each part yourself, pass the method, compressor, exchange, ... to `OuterLoop` as objects. `outerloop.loco`
compresses the gradients of every step and needs no outer loop.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outerloop import loco
    from outerloop.config.from_recipe import from_recipe
    from outerloop.config.recipe_optimizer import recipe_optimizer
    from outerloop.core import memory_usage as memory
    from outerloop.core.outer_loop import OuterLoop
    from outerloop.core.round import RoundReport
    from outerloop.core.state import distributed_checkpoint as resharding
    from outerloop.exchange.distributed import Distributed
    from outerloop.exchange.distributed_gossip import DistributedGossip
    from outerloop.inner.attach import Attached, attach
    from outerloop.integrations.hf_callback import HFCallback as HFCallback
    from outerloop.integrations.lightning_callback import LightningCallback as LightningCallback
    from outerloop.replica.gathered import Follower
    from outerloop.simulation.results import Results
    from outerloop.simulation.simulate import simulate
    from outerloop.types import LeaderFailed, Outvoted, QuorumLost, ReplicasDiverged, RoundFailed, UserError

try:
    __version__ = version("outerloop-train")
except PackageNotFoundError:  # running from a checkout that is not installed
    __version__ = "0+checkout"

__all__ = [
    "Attached",
    "Distributed",
    "DistributedGossip",
    "Follower",
    "LeaderFailed",
    "OuterLoop",
    "Outvoted",
    "QuorumLost",
    "ReplicasDiverged",
    "Results",
    "RoundFailed",
    "RoundReport",
    "UserError",
    "attach",
    "from_recipe",
    "loco",
    "memory",
    "recipe_optimizer",
    "resharding",
    "simulate",
]
"""All public names except CALLBACKS, which require optional packages."""

CALLBACKS = ("HFCallback", "LightningCallback")
MODULES = {
    "loco": "outerloop.loco",
    "memory": "outerloop.core.memory_usage",
    "resharding": "outerloop.core.state.distributed_checkpoint",
}
"""Public name -> the module that it stands for."""
HOMES = {
    "outerloop.config.from_recipe": ("from_recipe",),
    "outerloop.config.recipe_optimizer": ("recipe_optimizer",),
    "outerloop.core.outer_loop": ("OuterLoop",),
    "outerloop.core.round": ("RoundReport",),
    "outerloop.exchange.distributed": ("Distributed",),
    "outerloop.exchange.distributed_gossip": ("DistributedGossip",),
    "outerloop.inner.attach": ("Attached", "attach"),
    "outerloop.integrations.hf_callback": ("HFCallback",),
    "outerloop.integrations.lightning_callback": ("LightningCallback",),
    "outerloop.replica.gathered": ("Follower",),
    "outerloop.simulation.results": ("Results",),
    "outerloop.simulation.simulate": ("simulate",),
    "outerloop.types": ("LeaderFailed", "Outvoted", "QuorumLost", "ReplicasDiverged", "RoundFailed", "UserError"),
}
"""Module -> the public names that it defines.

A module is imported when one of its names is first used, so that the command line starts quickly.
"""

if not TYPE_CHECKING:  # hidden from type checkers, so that they report names that are not imported above

    def __getattr__(name: str) -> Any:
        if name in MODULES:
            return import_module(MODULES[name])
        home = next((module for module, names in HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module 'outerloop' has no attribute {name!r}")
        return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *CALLBACKS, "__version__"])
