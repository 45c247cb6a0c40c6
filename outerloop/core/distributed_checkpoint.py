"""Checkpoints of one island that come back on any number of ranks, through torch.distributed.checkpoint.

    index.json                   what lies where, read in place of torch's pickle (dcp_index.py)
    model, inner optimizer       as torch.distributed.checkpoint has them
    slow weights, residual, outer momentum    as DTensors, cut as their parameters are
    all else that evolves        one uint8 tensor (canonical.py), equal on all ranks

Every rank writes its shards, and reads what its shards are where it comes back. A residual of 8 bits is written in
float32, since its blocks are those of the shards, and rounded again where they become others. Rounds that are under way
are not written, nor what a compressor had agreed on for the next round: as after a failed round, the next one carries
the progress; nor the norms of the last rounds, which are those of shards. So all islands of a run are to be saved after
the same inner step, each in a folder of its own, and to come back together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import checkpoint
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.nn import Module
from torch.optim import Optimizer

from outerloop.core.loop import OuterLoop
from outerloop.feedback.residual_storage import dense
from outerloop.replica.sharding import global_of, group_of, local_of
from outerloop.state import canonical
from outerloop.state.dcp_files import Planner, Reader, Writer
from outerloop.state.dcp_index import dtype_of
from outerloop.types import Tensors, UserError, printable

OF_A_ROUND: dict[str, Any] = {"payload": {"agreed": {}}, "screen": {}, "in_flight": []}
"""What of the outer state belongs to shards as they are, as it is when nothing is under way."""
SHARD = "shard of"
"""Key of what stands for a tensor in the tree: the parameter that it is cut like; its dtype is beside it."""


def save(folder: str | Path, optimizer: Optimizer | None, outer: OuterLoop) -> None:
    """Write the model of `outer`, its optimizer and the outer state; every rank of the island calls it.

    Args:
        folder: one that all ranks of the island see, of this checkpoint alone.
        optimizer: the inner one; None where there is none.
    """
    shards: Tensors = {}
    lasting = {key: part for key, part in outer.evolved().items() if key not in OF_A_ROUND}
    tree = parted(lasting, outer, shards)
    rest = torch.frombuffer(bytearray(canonical.pack(tree)), dtype=torch.uint8)
    write(folder, inner_state(optimizer, outer.model) | {"outer": shards, "rest": rest}, outer.model)


def load(folder: str | Path, optimizer: Optimizer | None, outer: OuterLoop) -> None:
    """Take over what `save` wrote, whatever the number of ranks was; every rank of the island calls it.

    Call it before `attach`: torch fills a new optimizer with zeros by a step.

    Nothing in the folder is executed, and its index is checked before any of it is loaded.

    Raises:
        UserError: when there is no checkpoint, one that cannot be right, or one of another model.
    """
    held = Reader(Path(folder)).metadata.state_dict_metadata
    tree = rest_of(folder, held, outer.model)
    if (saved := set(tree["slow"])) != (here := set(outer.slow)):
        raise UserError(f"{folder} is of another model: only one has {', '.join(sorted(map(printable, saved ^ here)))}")
    for name, p in outer.island.params.items():
        there = held.get(f"outer.slow/{name}")
        shape = list(there.size) if isinstance(there, TensorStorageMetadata) else "no tensor"
        if shape != list(p.shape):
            raise UserError(f"{folder} is of another model: {name} has shape {shape} there, {list(p.shape)} here")
    shards: Tensors = {}
    try:
        prepare(tree, outer, shards)
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(f"{folder} holds another state than one of an outer loop") from error
    load_inner(folder, optimizer, outer.model, {"outer": shards})
    outer.load_state_dict(put_together(tree, shards) | OF_A_ROUND)


def rest_of(folder: str | Path, held: dict[str, Any], model: Module) -> dict[str, Any]:
    """Return what is not cut, with a word for each tensor that is. Raises UserError."""
    one = held.get("rest")
    if not isinstance(one, TensorStorageMetadata) or one.properties.dtype != torch.uint8:
        raise UserError(f"{folder} holds a checkpoint, and no outer loop in it: type a folder of `resharding.save`")
    rest = torch.empty(one.size, dtype=torch.uint8)
    read(folder, {"rest": rest}, model)
    try:
        tree = canonical.unpack(rest.numpy().tobytes())
    except ValueError as error:
        raise UserError(f"{folder} is damaged: the outer loop's state is {printable(str(error))[:200]}") from error
    slow = tree.get("slow") if isinstance(tree, dict) else None
    if not isinstance(slow, dict) or not all(isinstance(name, str) for name in slow):
        raise UserError(f"{folder} holds another state than one of an outer loop")
    return tree


def save_inner(folder: str | Path, optimizer: Optimizer | None, model: Module) -> None:
    """Write a model and its inner optimizer alone; every rank of the island calls it."""
    write(folder, inner_state(optimizer, model), model)


def load_inner(
    folder: str | Path, optimizer: Optimizer | None, model: Module, beside: dict[str, Any] | None = None
) -> None:
    """Take over model and inner optimizer, and what `beside` has room for; every rank of the island calls it."""
    state = inner_state(optimizer, model) | (beside or {})
    read(folder, state, model)
    set_model_state_dict(model, state["model"])
    if optimizer is not None:
        set_optimizer_state_dict(model, optimizer, state["optimizer"])


def inner_state(optimizer: Optimizer | None, model: Module) -> dict[str, Any]:
    """Model and inner optimizer, as torch names what they hold."""
    state: dict[str, Any] = {"model": get_model_state_dict(model)}
    return state if optimizer is None else state | {"optimizer": get_optimizer_state_dict(model, optimizer)}


def write(folder: str | Path, state: dict[str, Any], model: Module) -> None:
    """By all processes that hold the model."""
    group = group_of(model)
    checkpoint.save(state, storage_writer=Writer(folder), process_group=group, no_dist=group is None)


def read(folder: str | Path, state: dict[str, Any], model: Module) -> None:
    """Into the tensors of `state`, by all processes that hold the model. Raises UserError for what is not loaded."""
    group, reader = group_of(model), Reader(Path(folder))
    try:
        checkpoint.load(state, storage_reader=reader, planner=Planner(), process_group=group, no_dist=group is None)
    except CheckpointException as error:  # of any rank
        for cause, _ in error.failures.values():
            if isinstance(cause, UserError):
                raise UserError(f"{folder}: {cause}") from error
        raise


def parted(tree: Any, outer: OuterLoop, shards: Tensors, path: tuple[Any, ...] = (), name: str = "") -> Any:
    """The tree with a word in place of each tensor that is cut as parameter `name` is; those go to `shards`."""
    if isinstance(tree, dict):
        return {key: parted(x, outer, shards, (*path, key), owner(outer, path, key) or name) for key, x in tree.items()}
    x = dense(tree)
    if isinstance(x, Tensor) and name and x.shape == outer.slow[name].shape:
        shards["/".join(map(str, path))] = global_of(x, outer.island.params[name]).to(x.device)
        return {SHARD: name, "dtype": str(x.dtype).removeprefix("torch.")}
    return x


def owner(outer: OuterLoop, path: tuple[Any, ...], key: Any) -> str:
    """The parameter that a key of the tree speaks of: by its name, or by its number in an optimizer's state."""
    if path and path[-1] == "state" and isinstance(key, int):
        return list(outer.slow)[key]
    return key if key in outer.slow else ""


def prepare(tree: Any, outer: OuterLoop, shards: Tensors, path: tuple[Any, ...] = ()) -> None:
    """Room in `shards` for every tensor that the tree has a word for, cut as the parameters are here."""
    if not isinstance(tree, dict):
        return
    if SHARD in tree:
        like = outer.slow[tree[SHARD]]
        x = torch.zeros_like(like, dtype=dtype_of(tree["dtype"]))
        shards["/".join(map(str, path))] = global_of(x, outer.island.params[tree[SHARD]]).to(x.device)
        return
    for key, below in tree.items():
        prepare(below, outer, shards, (*path, key))


def put_together(tree: Any, shards: Tensors, path: tuple[Any, ...] = ()) -> Any:
    """The tree with this rank's tensors in place of the words."""
    if not isinstance(tree, dict):
        return tree
    if SHARD in tree:
        return local_of(shards["/".join(map(str, path))])
    return {key: put_together(below, shards, (*path, key)) for key, below in tree.items()}
