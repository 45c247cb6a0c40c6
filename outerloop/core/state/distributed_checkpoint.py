"""Save one island through torch.distributed.checkpoint so that any number of ranks can load it.

    index.json                   location of each entry; replaces torch's pickle (dcp_index.py)
    model, inner optimizer       as torch.distributed.checkpoint stores them
    slow weights, residual, outer momentum    as DTensors, sharded as their parameters are
    all other state that training changes     one uint8 tensor (canonical.py), equal on all ranks

Every rank writes its own shards. When loading, every rank reads the shards that it needs. An 8-bit residual is
written as float32, because its quantization blocks depend on how it is sharded. It is quantized again after loading.

The leader of a gathered island (gathered.py) writes and reads slow weights, residual and momentum as full tensors, and
its followers only their shards of the model and the inner optimizer. The checkpoint is the same as one of shards.

Four things are not written because they depend on the sharding: rounds in flight, the tensors that peers agreed on for
the next round, the norms of the last rounds, and what a compressor learned from its own messages. The progress of a
round in flight is not lost: the next round contains it, as after a failed round. But with eager updates, the slow
weights already contain a part of it, so `save` refuses a round in flight. All islands of a run must be saved after the
same inner step, each in a separate folder, and must be loaded together.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import checkpoint
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.nn import Module
from torch.optim import Optimizer

from outerloop.core.outer_loop import OuterLoop
from outerloop.feedback.residual_storage import dense
from outerloop.replica.gathered import Follower, Gathered
from outerloop.replica.inner_state import inner_state, set_inner_state
from outerloop.replica.island import Island
from outerloop.replica.rank_group import RankGroup
from outerloop.replica.sharding import process_group, to_local, unwrap_forward
from outerloop.state import canonical
from outerloop.state.dcp_files import Planner, Reader, Writer
from outerloop.state.dcp_index import parse_dtype
from outerloop.state.part_states import check_state
from outerloop.types import Tensors, UserError, printable

OF_A_ROUND: dict[str, Any] = {"payload": {"agreed": {}}, "screen": {}, "choosing": {}, "in_flight": []}
"""Parts of the outer state that are not saved, with the empty values that are loaded in their place."""
SHARD = "shard of"
"""Key in the placeholder that replaces a sharded tensor in the saved state.

Its value is the name of the parameter with the same sharding. The placeholder also contains the tensor's dtype.
"""


def save(folder: str | Path, optimizer: Optimizer | None, outer: OuterLoop | Follower) -> None:
    """Save the model, the inner optimizer and the outer state. Every rank of the island must call this.

    Args:
        folder: a folder that all ranks of the island can access, used for this checkpoint only.
        optimizer: the inner optimizer, or None to save no optimizer.
        outer: the outer loop, which also provides the model; on the followers of a gathered island, the Follower.

    Raises:
        UserError: if a round is in flight and the run uses eager updates, or if a tensor of the outer
            state is not sharded like the parameter to which it belongs.
    """
    if isinstance(outer, Follower):
        outer.serve()
        state: dict[str, Any] = {}
    else:
        with outer.island.followers_serving():
            state = outer_part(outer)
    write(folder, inner_state(optimizer, outer.model) | state, outer.model)


def outer_part(outer: OuterLoop) -> dict[str, Any]:
    """Return the outer state as the entries of a checkpoint. Raises the errors of `save`."""
    if outer.in_flight and outer.loop.lander.eager:
        raise UserError(
            "cannot save a sharded checkpoint while a round is in flight, which is always so with eager=true: start the"
            " run with eager=false schedule.delay=0"
        )
    shards: Tensors = {}
    lasting = {key: part for key, part in outer.evolved().items() if key not in OF_A_ROUND}
    tree = parted(lasting, outer, shards)
    return {"outer": shards, "rest": torch.frombuffer(bytearray(canonical.pack(tree)), dtype=torch.uint8)}


def load(folder: str | Path, optimizer: Optimizer | None, outer: OuterLoop | Follower) -> None:
    """Load a checkpoint that `save` wrote, with any number of ranks. Every rank of the island must call this.

    In a swarm, call `load_state` before `from_recipe` instead: a peer joins the run at the round of its state.
    Loading executes no content of the folder, and checks the folder's index before it loads anything.

    Raises:
        UserError: if there is no checkpoint, if the checkpoint is invalid or belongs to another model, or if this peer
            has joined a run at another round than that of the checkpoint.
    """
    if isinstance(outer, Follower):
        read_state(folder, optimizer, outer.model, outer.island, no_values(outer.island))
        outer.serve()
        return
    early = None if isinstance(outer.island, Gathered) else outer.state.check_position  # followers have no position
    state = read_state(folder, optimizer, outer.model, outer.island, outer.slow, check=early)
    with outer.island.followers_serving():
        outer.load_state_dict(state)
        outer.island.run_on_followers("move", inner_step=outer.inner_step)


def load_state(
    folder: str | Path, optimizer: Optimizer | None, model: Module, *, gathered: bool = False
) -> dict[str, Any]:
    """Load the model and the inner optimizer that `save` wrote, and return the outer state for `from_recipe`.

    Pass the result on every rank: from_recipe(..., state=state). Every rank of the island must call this, before
    `from_recipe`. The number of ranks may differ from that of the ranks that saved.

    Args:
        folder: the folder of the checkpoint.
        optimizer: the inner optimizer, or None to load no optimizer.
        model: the model that is passed to `from_recipe`.
        gathered: as for `from_recipe`.

    Raises:
        UserError: if there is no checkpoint, or if the checkpoint is invalid or belongs to another model.
    """
    model = unwrap_forward(model)
    if not gathered:
        island = Island(model)
        values = {name: torch.empty_like(island.local_shard(name), device="cpu") for name in island.params}
        return read_state(folder, optimizer, model, island, values)
    island = Gathered(model, ranks := RankGroup(process_group(model)), hash_frozen=False)  # from_recipe hashes them
    if ranks.is_leader:
        full = {name: torch.empty(p.shape) for name, p in island.params.items()}
        return read_state(folder, optimizer, model, island, full)
    state = read_state(folder, optimizer, model, island, no_values(island))
    return {"inner_step": state["inner_step"]}


def no_values(island: Island) -> Tensors:
    """Return tensors without memory in place of the slow weights, for a rank that has no outer state."""
    return {name: torch.empty(p.shape, device="meta") for name, p in island.params.items()}


def read_state(
    folder: str | Path,
    optimizer: Optimizer | None,
    model: Module,
    island: Island,
    like: Tensors,
    *,
    check: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Load the model and the inner optimizer in place, and return the outer state.

    like: by parameter name, tensors with the shape and device of the slow weights of this rank; on the meta device if
    this rank has no outer state. check: called with the unsharded part of the outer state before anything is loaded.

    Raises UserError if the checkpoint is invalid or belongs to another model, and the errors of `check`.
    """
    held = Reader(Path(folder)).metadata.state_dict_metadata
    tree = rest_of(folder, held, model)
    if (saved := set(tree["slow"])) != (here := set(like)):
        raise UserError(
            f"{folder} holds a checkpoint of another model: only one of the two models has"
            f" {', '.join(sorted(map(printable, saved ^ here)))}"
        )
    for name, p in island.params.items():
        there = held.get(f"outer.slow/{name}")
        shape = list(there.size) if isinstance(there, TensorStorageMetadata) else "no tensor"
        if shape != list(p.shape):
            raise UserError(
                f"{folder} holds a checkpoint of another model: the shape of {name} is {shape} in the checkpoint,"
                f" {list(p.shape)} in this model"
            )
    shards: Tensors = {}
    try:
        prepare(tree, island, like, shards)
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(f"{folder} does not hold the state of an outer loop") from error
    check_state(tree | OF_A_ROUND)
    if check:
        check(tree | OF_A_ROUND)
    own = {path: x for path, x in shards.items() if not x.is_meta}
    load_inner(folder, optimizer, model, {"outer": own})
    return put_together(tree, shards) | OF_A_ROUND


def rest_of(folder: str | Path, held: dict[str, Any], model: Module) -> dict[str, Any]:
    """Read the unsharded part of the state, which contains a placeholder for each sharded tensor.

    held: the entries of the checkpoint's index. Raises UserError if the state is missing or invalid.
    """
    one = held.get("rest")
    if not isinstance(one, TensorStorageMetadata) or one.properties.dtype != torch.uint8:
        raise UserError(f"{folder} holds a checkpoint without an outer loop: use a folder that `resharding.save` wrote")
    rest = torch.empty(one.size, dtype=torch.uint8)
    read(folder, {"rest": rest}, model)
    try:
        tree = canonical.unpack(rest.numpy().tobytes())
    except ValueError as error:
        raise UserError(f"{folder} is damaged: the outer loop's state is {printable(str(error))[:200]}") from error
    slow = tree.get("slow") if isinstance(tree, dict) else None
    if not isinstance(slow, dict) or not all(isinstance(name, str) for name in slow):
        raise UserError(f"{folder} does not hold the state of an outer loop")
    return tree


def save_inner(folder: str | Path, optimizer: Optimizer | None, model: Module) -> None:
    """Save only a model and its inner optimizer. Every rank of the island must call this."""
    write(folder, inner_state(optimizer, model), model)


def load_inner(
    folder: str | Path, optimizer: Optimizer | None, model: Module, beside: dict[str, Any] | None = None
) -> None:
    """Load the model, the inner optimizer and the tensors of `beside` in place. Every rank must call this."""
    state = inner_state(optimizer, model, saved=Reader(Path(folder)).metadata.state_dict_metadata) | (beside or {})
    read(folder, state, model)
    set_inner_state(state, optimizer, model)


def write(folder: str | Path, state: dict[str, Any], model: Module) -> None:
    """Write `state` to a checkpoint folder. All processes that hold the model must call this."""
    group = process_group(model)
    checkpoint.save(state, storage_writer=Writer(folder), process_group=group, no_dist=group is None)


def read(folder: str | Path, state: dict[str, Any], model: Module) -> None:
    """Read a checkpoint folder into the tensors of `state`, in place. All processes that hold the model must call this.

    Raises UserError if the checkpoint is invalid.
    """
    group, reader = process_group(model), Reader(Path(folder))
    try:
        checkpoint.load(state, storage_reader=reader, planner=Planner(), process_group=group, no_dist=group is None)
    except CheckpointException as error:  # raised on all ranks if any rank fails
        for cause, _ in error.failures.values():
            if isinstance(cause, UserError):
                raise UserError(f"{folder}: {cause}") from error
        raise


def parted(tree: Any, outer: OuterLoop, shards: Tensors, path: tuple[Any, ...] = (), name: str = "") -> Any:
    """Return the tree with a placeholder for each tensor that is sharded like a parameter; add the tensor to `shards`.

    path: the keys that lead to this subtree. name: the parameter that the subtree belongs to, or "". Raises UserError
    if a tensor of a parameter has several values and another shape.
    """
    if isinstance(tree, dict):
        return {key: parted(x, outer, shards, (*path, key), owner(outer, path, key) or name) for key, x in tree.items()}
    x = dense(tree)
    if isinstance(x, Tensor) and name and x.shape == outer.slow[name].shape:
        shards["/".join(map(str, path))] = outer.island.to_global(name, x)
        return {SHARD: name, "dtype": str(x.dtype).removeprefix("torch.")}
    if isinstance(x, Tensor) and name and x.numel() > 1:
        raise UserError(
            f"cannot save a sharded checkpoint: {'/'.join(map(str, path))}, of the parameter {name}, has shape"
            f" {list(x.shape)}, not {list(outer.slow[name].shape)}: use a method and feedback whose tensors have the"
            " shapes of the parameters, such as method=diloco"
        )
    return x


def owner(outer: OuterLoop, path: tuple[Any, ...], key: Any) -> str:
    """Return the name of the parameter that a key refers to, or "" if it does not refer to a parameter.

    A key is a parameter's name or, in an optimizer's state, its index in the parameter groups. path: the keys that lead
    to it: the name of a part; for its optimizer also the names of the attributes, then "state".
    """
    if not (path and path[-1] == "state" and isinstance(key, int)):
        return key if key in outer.slow else ""
    optimizer = reduce(getattr, path[1:-1], outer.state.parts[path[0]])
    params = [x for group in optimizer.param_groups for x in group["params"]]
    return next(name for name, x in outer.slow.items() if x is params[key])


def prepare(tree: Any, island: Island, like: Tensors, shards: Tensors, path: tuple[Any, ...] = ()) -> None:
    """For each placeholder in the tree, allocate a tensor in `shards` with the sharding of the outer state.

    like: by parameter name, tensors with the shape and device of the slow weights.
    """
    if not isinstance(tree, dict):
        return
    if SHARD in tree:
        x = torch.zeros_like(like[tree[SHARD]], dtype=parse_dtype(tree["dtype"]))
        shards["/".join(map(str, path))] = x if x.is_meta else island.to_global(tree[SHARD], x)
        return
    for key, below in tree.items():
        prepare(below, island, like, shards, (*path, key))


def put_together(tree: Any, shards: Tensors, path: tuple[Any, ...] = ()) -> Any:
    """Return the tree with each placeholder replaced by this rank's shard of the tensor."""
    if not isinstance(tree, dict):
        return tree
    if SHARD in tree:
        return to_local(shards["/".join(map(str, path))])
    return {key: put_together(below, shards, (*path, key)) for key, below in tree.items()}
