"""Describe how a model is sharded: which processes hold it, and which part this process holds.

This is the only module that uses DTensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import DataParallel, Module
from torch.nn.parallel import DistributedDataParallel

from outerloop.types import Tensors, UserError

GROUPS: WeakKeyDictionary[Module, dist.ProcessGroup] = WeakKeyDictionary()
"""Model -> process group of its whole mesh. Created once per model if the mesh itself has no such group (HSDP)."""
FORWARD_WRAPPERS = ("_orig_mod", "_forward_module")
"""Attributes in which torch.compile and Lightning Fabric store the module that they wrap."""
WRAPPERS = (*FORWARD_WRAPPERS, "_checkpoint_wrapped_module")
"""Name components that wrappers add: FORWARD_WRAPPERS, and the component added by activation checkpointing."""


def unwrap_forward(model: Module) -> Module:
    """Return the module inside any wrappers of torch.compile, Lightning Fabric and DataParallel, but not of DDP."""
    names = ("module",) if isinstance(model, DataParallel) else FORWARD_WRAPPERS
    inner = next((model._modules[name] for name in names if model._modules.get(name) is not None), None)
    return model if inner is None else unwrap_forward(inner)


def unwrap(model: Module) -> Module:
    """Return the model inside any wrappers of DDP, DataParallel, torch.compile and Lightning Fabric.

    Its parameter names are then those of an unwrapped model.
    """
    model = unwrap_forward(model)
    return unwrap(model.module) if isinstance(model, DistributedDataParallel) else model


def plain_name(name: str) -> str:
    """Return the name of a parameter or buffer without the components that wrappers add."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def reshard(model: Module) -> None:
    """Reshard modules under `fully_shard` that still hold gathered parameters.

    Modules keep gathered parameters after a forward pass without a backward pass, for example after an evaluation.
    These copies would hide changes to the shards.
    """
    for module in model.modules():
        reshard_module: Any = getattr(module, "reshard", None)
        if reshard_module is not None:
            reshard_module()


def process_group(model: Module) -> dist.ProcessGroup | None:
    """Return the group of processes that hold this model as shards or copies, or None if only this process holds it."""
    if isinstance(model, DistributedDataParallel):
        return model.process_group
    mesh, _ = mesh_and_placements(model)
    if mesh is None or mesh.ndim == 1:
        return None if mesh is None else mesh.get_group()
    if model not in GROUPS:
        GROUPS[model] = dist.new_group(mesh.mesh.flatten().tolist(), use_local_synchronization=True)
    return GROUPS[model]


def num_processes(model: Module) -> int:
    """Return the number of processes that hold this model as shards or copies."""
    if isinstance(model, DistributedDataParallel):
        return model.process_group.size()
    mesh, _ = mesh_and_placements(model)
    return mesh.size() if mesh is not None else 1


def replica_group(model: Module) -> dist.ProcessGroup | None:
    """Return the group of processes that hold the same tensors as this process, or None if there is no such group.

    The group contains all ranks of a DDP model, or the copies of one shard in HSDP.
    """
    if isinstance(model, DistributedDataParallel):
        return model.process_group
    mesh, placements = mesh_and_placements(model)
    replicated_dims = [i for i, placement in enumerate(placements) if mesh.size(i) > 1 and placement.is_replicate()]
    return mesh.get_group(replicated_dims[0]) if replicated_dims else None


def shard_group(model: Module) -> dist.ProcessGroup | None:
    """Return the group of processes, including this one, that hold one copy of the model, each with a different shard.

    Return None if the model is not sharded. Raises UserError if it is sharded along several dimensions of its mesh.
    """
    mesh, placements = mesh_and_placements(model)
    sharded_dims = [i for i, placement in enumerate(placements) if not placement.is_replicate()]
    if len(sharded_dims) > 1:
        raise UserError(
            f"the model is sharded along {len(sharded_dims)} dimensions of its mesh; a swarm allows one, as created by"
            " fully_shard, with or without copies of the shards: set exchange=distributed, or shard along one dimension"
        )
    return mesh.get_group(sharded_dims[0]) if sharded_dims else None


def is_sharded(model: Module) -> bool:
    """Return whether the model is under `fully_shard`, even with a single process."""
    return mesh_and_placements(model)[0] is not None


def num_shards(model: Module) -> int:
    """Return the number of processes that hold different parts of the model, or 1 if every process holds all of it."""
    mesh, placements = mesh_and_placements(model)
    return prod(mesh.size(i) for i, placement in enumerate(placements) if not placement.is_replicate())


def mesh_and_placements(model: Module) -> tuple[Any, Sequence[Any]]:
    """Return a model's device mesh and the placements of its first sharded parameter.

    Return (None, ()) if no parameter is sharded. Raises UserError if a trainable parameter is not sharded although
    another parameter is, or if parameters have different meshes.
    """
    reshard(model)
    params: dict[str, Any] = dict(model.named_parameters())
    sharded = {name: p for name, p in params.items() if hasattr(p, "device_mesh")}
    if not sharded:
        return None, ()
    first, p = next(iter(sharded.items()))
    for name, other in params.items():
        if name in sharded and other.device_mesh != p.device_mesh:
            raise UserError(
                f"{first} is sharded over {p.device_mesh}, but {name} over {other.device_mesh}: call fully_shard with"
                " one mesh for the whole model"
            )
        if name not in sharded and other.requires_grad:
            raise UserError(
                f"{first} is sharded, but {name} is trainable and not sharded: call fully_shard on the whole model"
                " after its layers, or set requires_grad_(False) on it"
            )
    return p.device_mesh, p.placements


def to_local(x: Tensor) -> Tensor:
    """Return this process's part of a DTensor, sharing its memory. Return other tensors unchanged.

    A DTensor is recognized by its method `to_local`. Its class is not imported, because the import takes a second, even
    if the model is not sharded.
    """
    return x.to_local() if hasattr(x, "to_local") else x


def full_tensor(p: Any, *, of_gradient: bool) -> Tensor:
    """Return a copy of a parameter or its gradient as a contiguous tensor with the global shape.

    This is a collective if the parameter is sharded.

    The copy is explicit because DTensor.full_tensor returns the tensor itself if this process already holds all of it.
    """
    if of_gradient and p.grad is None:
        return torch.zeros(p.shape, dtype=p.dtype, device=p.device)
    x = p.grad if of_gradient else p.detach()
    full = x.full_tensor() if hasattr(x, "full_tensor") else x
    gathered = full.numel() > to_local(x).numel()
    return full.contiguous() if gathered else full.clone(memory_format=torch.contiguous_format)


@torch.no_grad()
def full_tensors(slow: Tensors, params: Mapping[str, Tensor], *, keep: bool) -> Tensors:
    """Gather full tensors from shards. Return them on the CPU on ranks with `keep`, and an empty dictionary elsewhere.

    `slow`: this process's parts of tensors that are sharded like `params`. If they are sharded, this is a collective,
    which gathers one tensor at a time.
    """
    gathered = {}
    for name, x in slow.items():
        full = to_global(x, params[name])
        full = full.full_tensor() if hasattr(full, "full_tensor") else full
        if keep:
            gathered[name] = full.cpu()
    return gathered


def shard_like(x: Tensor, p: Any) -> Tensor:
    """Shard x, the full tensor of the first process, in the same way as p, and return this process's part.

    This is a collective if p is sharded.
    """
    if not hasattr(p, "device_mesh"):
        return x
    return import_module("torch.distributed.tensor").distribute_tensor(x, p.device_mesh, p.placements).to_local()


def to_global(x: Tensor, p: Any) -> Tensor:
    """Convert this process's part of a tensor that is sharded like p to a DTensor with the global shape."""
    if not hasattr(p, "device_mesh"):
        return x
    from_local = import_module("torch.distributed.tensor").DTensor.from_local
    return from_local(x, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())


def describe_layout(p: Tensor) -> str:
    """Describe the global shape of p and how p is sharded: "[7, 4]", or "[7, 4], Shard(dim=0) part 1 of 2".

    Mesh dimensions along which p is replicated are omitted.
    """
    mesh, placements = getattr(p, "device_mesh", None), getattr(p, "placements", ())
    shards = [
        f", {placement!r} part {mesh.get_local_rank(i)} of {mesh.size(i)}"
        for i, placement in enumerate(placements)
        if mesh is not None and mesh.size(i) > 1 and not placement.is_replicate()
    ]
    return f"{list(p.shape)}{''.join(shards)}"
