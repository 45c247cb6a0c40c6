"""How a model is cut: which processes hold it, and what this one has of a tensor; the only room that knows DTensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from outerloop.types import Tensors, UserError

GROUPS: WeakKeyDictionary[Module, dist.ProcessGroup] = WeakKeyDictionary()
"""Of models whose meshes have no group for all their processes (HSDP): made once for each, not at every save."""


def unwrapped(model: Module) -> Module:
    """What DDP and torch.compile are around, in whatever order: names are those of an island of one process."""
    if isinstance(model, DistributedDataParallel):
        return unwrapped(model.module)
    inside = getattr(model, "_orig_mod", None)
    return model if inside is None else unwrapped(inside)


def cut_again(model: Module) -> None:
    """Drop what modules under `fully_shard` have gathered and kept, as after an evaluation without a backward pass.

    Their parameters are the shards again; what was gathered would hide that these have moved.
    """
    for module in model.modules():
        reshard: Any = getattr(module, "reshard", None)
        if reshard is not None:
            reshard()


def group_of(model: Module) -> dist.ProcessGroup | None:
    """The processes that hold this model together, its shards or copies of it; None where it is this one's alone."""
    if isinstance(model, DistributedDataParallel):
        return model.process_group
    mesh, _ = cut_of(model)
    if mesh is None or mesh.ndim == 1:
        return None if mesh is None else mesh.get_group()
    if model not in GROUPS:
        GROUPS[model] = dist.new_group(mesh.mesh.flatten().tolist(), use_local_synchronization=True)
    return GROUPS[model]


def processes_of(model: Module) -> int:
    """How many processes hold this model together, its shards or copies of it."""
    if isinstance(model, DistributedDataParallel):
        return model.process_group.size()
    mesh, _ = cut_of(model)
    return mesh.size() if mesh is not None else 1


def copies_of(model: Module) -> dist.ProcessGroup | None:
    """The processes that hold what this one holds: all ranks of a DDP model, the copies of a shard in HSDP.

    None where each holds something else.
    """
    if isinstance(model, DistributedDataParallel):
        return model.process_group
    mesh, placements = cut_of(model)
    copied = [i for i, placement in enumerate(placements) if mesh.size(i) > 1 and placement.is_replicate()]
    return mesh.get_group(copied[0]) if copied else None


def shards_of(model: Module) -> dist.ProcessGroup | None:
    """The processes that hold one copy of the model together, a shard each, this one included. Raises UserError."""
    mesh, placements = cut_of(model)
    cuts = [i for i, placement in enumerate(placements) if not placement.is_replicate()]
    if len(cuts) > 1:
        raise UserError(
            f"the model is cut along {len(cuts)} dimensions of its mesh: in a swarm it may be cut along one, as by"
            " fully_shard, be it with copies of the shards: type exchange=distributed, or shard it once"
        )
    return mesh.get_group(cuts[0]) if cuts else None


def is_cut(model: Module) -> bool:
    """Whether the model is under `fully_shard`, be it with one process alone."""
    return cut_of(model)[0] is not None


def lanes_of(model: Module) -> int:
    """How many processes hold something else of the model each: 1 where a process has the whole of it."""
    mesh, placements = cut_of(model)
    return prod(mesh.size(i) for i, placement in enumerate(placements) if not placement.is_replicate())


def cut_of(model: Module) -> tuple[Any, Sequence[Any]]:
    """The mesh of a model's processes and how its first parameter lies on it; None and nothing of a plain one."""
    cut_again(model)
    p = next(model.parameters(), None)
    return getattr(p, "device_mesh", None), getattr(p, "placements", ())


def local_of(x: Tensor) -> Tensor:
    """This lane's part of a DTensor, which shares its memory; other tensors as they are.

    DTensor is known by its method: to import the class takes a second, which processes without shards need not spend.
    """
    return x.to_local() if hasattr(x, "to_local") else x


def whole(p: Any, *, of_gradient: bool) -> Tensor:
    """A parameter or its gradient as a contiguous tensor of its own, of the global shape. A collective where it is cut.

    Where a process holds the whole, as a mesh of one does, `full_tensor` gives that, and not a copy.
    """
    if of_gradient and p.grad is None:
        return torch.zeros(p.shape, dtype=p.dtype, device=p.device)
    x = p.grad if of_gradient else p.detach()
    full = x.full_tensor() if hasattr(x, "full_tensor") else x
    gathered = full.numel() > local_of(x).numel()
    return full.contiguous() if gathered else full.clone(memory_format=torch.contiguous_format)


@torch.no_grad()
def whole_of(slow: Tensors, params: Mapping[str, Tensor], *, keep: bool) -> Tensors:
    """Tensors that are cut as these parameters are, whole and on the CPU, for who shall `keep` them.

    A collective where they are sharded: one tensor after another is gathered.
    """
    kept = {}
    for name, x in slow.items():
        full = global_of(x, params[name])
        full = full.full_tensor() if hasattr(full, "full_tensor") else full
        if keep:
            kept[name] = full.cpu()
    return kept


def shard_of(x: Tensor, p: Any) -> Tensor:
    """This process's part of a full tensor that the first process has, cut as p is. A collective where p is sharded."""
    if not hasattr(p, "device_mesh"):
        return x
    return import_module("torch.distributed.tensor").distribute_tensor(x, p.device_mesh, p.placements).to_local()


def global_of(x: Tensor, p: Any) -> Tensor:
    """A tensor of the shape of this process's part of p as one of the global shape, on the device of p."""
    if not hasattr(p, "device_mesh"):
        return x
    of_shards = import_module("torch.distributed.tensor").DTensor.from_local
    return of_shards(x, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())


def layout_of(p: Tensor) -> str:
    """ "[7, 4]", or "[7, 4], Shard(dim=0) part 1 of 2": the global shape, and where it is cut. Copies do not count."""
    mesh, placements = getattr(p, "device_mesh", None), getattr(p, "placements", ())
    cuts = [
        f", {placement!r} part {mesh.get_local_rank(i)} of {mesh.size(i)}"
        for i, placement in enumerate(placements)
        if mesh is not None and mesh.size(i) > 1 and not placement.is_replicate()
    ]
    return f"{list(p.shape)}{''.join(cuts)}"
