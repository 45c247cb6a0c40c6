"""One replica as plain tensors: the door between a model and the outer loop, and the only room that knows DTensor.

Of a model under `fully_shard` a process holds a shard of every parameter, and that is what the outer loop sees: each
process is a lane, which meets the process that holds the same shards of the other islands. No full tensor is built;
slow weights, residual and momentum are sharded as the model is. A lane compresses its shard as a tensor of its own, so
chunks, scales and norms are those of the shard. A shard may have no value at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Module

from outerloop.types import Tensors, UserError


class Island:
    """The trainable parameters of one model, by name; tied parameters appear once, frozen ones not at all.

    Raises:
        UserError: if the model has no trainable parameter.
    """

    def __init__(self, model: Module) -> None:
        self.params = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.params:
            raise UserError(
                f"{type(model).__name__} has no trainable parameter: set requires_grad on what should train"
            )
        self.sharded: list[Any] = [module for module in model.modules() if hasattr(module, "reshard")]

    def local(self, name: str) -> Tensor:
        """A parameter as it is here, in the model's own precision and memory: the whole of it, or this lane's shard."""
        return local_of(self.params[name].detach())

    def layouts(self) -> dict[str, str]:
        """What lanes that meet must have in common, by name: shapes, and which shard of them is here."""
        return {name: layout_of(p) for name, p in self.params.items()}

    def read(self, names: Sequence[str], what: Literal["weights", "gradients"]) -> Tensors:
        """Fast weights or gradients as float32 or wider; a view where the model's own precision allows it."""
        if what == "weights":
            return {name: widened(self.local(name)) for name in names}
        return {name: widened(gradient_of(self.params[name])) for name in names}

    def pick(self, names: Iterable[str]) -> Tensors:
        """Fast weights as they are, in the model's own precision."""
        return {name: self.local(name) for name in names}

    @torch.no_grad()
    def write(self, slow: Tensors, *, merge_local: float) -> None:
        """θ ← merge_local · θ + (1 − merge_local) · φ, in place; at 0 a plain copy."""
        for name, x in slow.items():
            fast = self.local(name)
            if merge_local:
                x = torch.lerp(x, fast.to(x.dtype), merge_local)
            fast.copy_(x)
        self.forget_gathered()

    def forget_gathered(self) -> None:
        """What modules have gathered for an evaluation without a backward pass is no longer what the shards say."""
        for module in self.sharded:
            module.reshard()


def local_of(x: Tensor) -> Tensor:
    """This lane's part of a DTensor, which shares its memory; other tensors as they are.

    DTensor is known by its method: to import the class takes a second, which processes without shards need not spend.
    """
    return x.to_local() if hasattr(x, "to_local") else x


def layout_of(p: Tensor) -> str:
    """ "[7, 4]", or "[7, 4], Shard(dim=0) part 1 of 2": the global shape, and where it is cut. Copies do not count."""
    mesh, placements = getattr(p, "device_mesh", None), getattr(p, "placements", ())
    cuts = [
        f", {placement!r} part {mesh.get_local_rank(i)} of {mesh.size(i)}"
        for i, placement in enumerate(placements)
        if mesh is not None and mesh.size(i) > 1 and not placement.is_replicate()
    ]
    return f"{list(p.shape)}{''.join(cuts)}"


def gradient_of(p: Tensor) -> Tensor:
    """The gradient, or zeros where this step did not reach the parameter."""
    return local_of(torch.zeros_like(p) if p.grad is None else p.grad).detach()


def widened(x: Tensor) -> Tensor:
    """float32 for the half precisions, unchanged otherwise."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
