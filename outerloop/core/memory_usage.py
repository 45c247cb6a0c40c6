"""Report the memory of a rank in bytes, by part: estimated before the first step, or measured later.

    parameters        this rank's shards of all parameters            gradients      of trainable parameters
    inner optimizer   state of the inner optimizer                    slow           slow weights φ
    residual          state of the feedback                           momentum       state of the outer method
    buffers           buffers of the model                            spare          copies kept from round to round

State that does not exist yet is estimated from one trial: a step of the same optimizer, method and feedback on a
parameter of 4,096 values. Temporary memory within a round (updates, messages, one gathered parameter) is not counted.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from outerloop.core.outer_loop import OuterLoop
from outerloop.replica.island import Island
from outerloop.replica.sharding import to_local
from outerloop.replica.state_size import SIDE, TrialState, tree_bytes
from outerloop.types import Tensors


@dataclass(frozen=True)
class MemoryUsage:
    """The memory of one rank in bytes, by part.

    state_device: the device of slow weights, residual and momentum, or None if it is the model's device.
    """

    parts: dict[str, int]
    state_device: torch.device | None = None

    @property
    def total(self) -> int:
        """Total bytes of all parts."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        shown = ", ".join(f"{part} {size / 1e6:,.1f}" for part, size in self.parts.items())
        apart = (
            f"; slow, residual and momentum on {self.state_device}" if self.state_device and self.parts["slow"] else ""
        )
        return f"memory of this rank {self.total / 1e6:,.1f} MB: {shown}{apart}"


class HoldsMemory(Protocol):
    """The attributes that `estimate` reads from an outer loop, or from its stand-in on a rank without outer state."""

    @property
    def model(self) -> Module: ...

    @property
    def island(self) -> Island: ...

    @property
    def slow(self) -> Tensors: ...

    @property
    def trial_state(self) -> TrialState | None: ...

    @property
    def spare_bytes(self) -> int: ...


def estimate(outer: HoldsMemory, optimizer: Optimizer | None) -> MemoryUsage:
    """Return the memory that this rank will use once it has taken a step and landed a round. Changes nothing.

    Args:
        outer: an outer loop whose model is already on its final device, and sharded if the run shards it.
        optimizer: the inner optimizer, or None.
    """
    trained = outer.island.params.values()
    slow, trial = tree_bytes(outer.slow), outer.trial_state
    return MemoryUsage(
        {
            "parameters": tree_bytes(outer.model.parameters()),
            "gradients": sum(to_local(p.detach()).nbytes for p in trained),
            "inner optimizer": sum(state_bytes(one) for one in parts_of(optimizer)),
            "slow": slow,
            "residual": round(slow * trial.residual_share) if trial else 0,
            "momentum": round(slow * trial.momentum_share) if trial else 0,
            "spare": outer.spare_bytes,
            "buffers": tree_bytes(outer.model.buffers()),
        },
        outer.island.state_device,
    )


def measure(outer: OuterLoop, optimizer: Optimizer) -> MemoryUsage:
    """Return the memory that this rank uses now, measured from existing tensors."""
    states = {id(one.state): one.state for one in parts_of(optimizer)}  # the parts may share one state
    return MemoryUsage(
        {
            "parameters": tree_bytes(outer.model.parameters()),
            "gradients": tree_bytes(p.grad for p in outer.island.params.values()),
            "inner optimizer": tree_bytes(states),
            "slow": tree_bytes(outer.slow),
            "residual": tree_bytes(outer.feedback.state_dict()),
            "momentum": tree_bytes(outer.method.state_dict()),
            "spare": tree_bytes(outer.pipeline.copies),
            "buffers": tree_bytes(outer.model.buffers()),
        },
        outer.island.state_device,
    )


def parts_of(optimizer: Optimizer | None) -> list[Optimizer]:
    """Return the optimizers inside a composite optimizer, or [optimizer] if it is not composite, or [] for None."""
    if optimizer is None:
        return []
    values = [value if isinstance(value, list) else [value] for value in vars(optimizer).values()]
    return [one for several in values for one in several if isinstance(one, Optimizer)] or [optimizer]


def state_bytes(optimizer: Optimizer) -> int:
    """Estimate the size in bytes of an optimizer's state for all its parameters.

    Runs one trial step for each combination of parameter group, number of dimensions and dtype.
    """
    total, known = 0.0, dict[Any, float]()
    for number, group in enumerate(optimizer.param_groups):
        for p in group["params"]:
            x = to_local(p.detach())
            kind = number, x.dim(), x.dtype
            if kind not in known:
                known[kind] = tried(optimizer, group, x)
            total += known[kind] * x.nbytes
    return round(total)


def tried(optimizer: Optimizer, group: dict[str, Any], like: Tensor) -> float:
    """Return the optimizer's state bytes per parameter byte, for parameters with the dtype and dimensions of `like`.

    Runs a trial step of a copy of the optimizer on a small parameter.
    """
    shape = [SIDE * SIDE] if like.dim() < 2 else [SIDE, SIDE, *[1] * (like.dim() - 2)]
    stand_in = Parameter(like.new_zeros(shape))
    stand_in.grad = torch.zeros_like(stand_in)
    trial = copy.copy(optimizer)  # shares no hooks with the original
    own = {name: value for name, value in vars(optimizer).items() if name not in vars(trial) and name != "step"}
    vars(trial).update(own)  # attributes that copy.copy omits, but not the `step` that LR schedulers add
    trial.param_groups, trial.state = [{**group, "params": [stand_in]}], defaultdict(dict)
    trial.step()
    return tree_bytes(trial.state) / stand_in.nbytes
