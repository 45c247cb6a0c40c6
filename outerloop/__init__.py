"""outerloop: train one model on machines that are far apart.

Workers take many inner steps independently; every H steps, the outer loop exchanges compressed pseudo-gradients.

Use in your own training loop:

    outer = outerloop.from_recipe("sparseloco", model, "exchange.peers=4")
    outerloop.attach(optimizer, outer)

`OuterLoop` takes the parts as objects. `outerloop.loco` compresses the gradients of every step, without an outer loop.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

try:
    __version__ = version("outerloop-train")
except PackageNotFoundError:  # not installed: run from a checkout
    __version__ = "0+checkout"

OFFERED = {
    "from_recipe": ("outerloop.config.from_recipe", "from_recipe"),
    "attach": ("outerloop.inner.attach", "Attached"),
    "HFCallback": ("outerloop.inner.hf_callback", "HFCallback"),
    "LightningCallback": ("outerloop.inner.lightning_callback", "LightningCallback"),
    "OuterLoop": ("outerloop.core.outer_loop", "OuterLoop"),
    "Distributed": ("outerloop.exchange.distributed", "Distributed"),
    "DistributedGossip": ("outerloop.exchange.distributed_gossip", "DistributedGossip"),
}
"""Name -> module and attribute; imported on first access, so that the command line starts quickly."""
MODULES = {
    "loco": "outerloop.loco",
    "memory": "outerloop.core.memory_usage",
    "resharding": "outerloop.core.distributed_checkpoint",
}
"""Name -> module that is exported as a whole."""


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return import_module(MODULES[name])
    if name not in OFFERED:
        raise AttributeError(f"module 'outerloop' has no attribute {name!r}")
    module, there = OFFERED[name]
    return getattr(import_module(module), there)
