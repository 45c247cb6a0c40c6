"""Capture and restore the whole state between two inner steps, as canonical bytes whose hashes form a leaf.

    weights     parameter name -> tensor
    optimizer   number of updates, and the tensors in the optimizer's state
    rest        the model's buffers, and the states of the random number generators of the CPU and the trainer's device

Hyperparameters are not part of the state: all peers of a run have the same, and the learning rate follows from the
inner step and the number of updates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from outerloop import rng
from outerloop.inner.audit.optimizer_bounds import momentum_gain, refuse_impossible
from outerloop.inner.trainer import Trainer
from outerloop.state import canonical
from outerloop.swarm.audit.leaves import Leaf
from outerloop.types import UserError

HYPERPARAMETERS = "param_groups"
STATE = "state"
State = tuple[bytes, bytes, bytes]
"""The canonical bytes of weights, optimizer and rest, in the order of `Leaf`."""


def capture(trainer: Trainer[Any]) -> State:
    """Return the current state. Raises UserError if the optimizer's state contains more than tensors."""
    weights, optimizer, rest = trees(trainer)
    return canonical.pack(weights), canonical.pack(optimizer), canonical.pack(rest)


def leaf_of(state: State) -> Leaf:
    """Return the leaf of a state."""
    return Leaf(*(hashlib.sha256(part).digest() for part in state))


def weights_hash(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the hash that a leaf contains for these weights."""
    return hashlib.sha256(canonical.pack(dict(tensors))).digest()


@torch.no_grad()
def restore(trainer: Trainer[Any], state: State, *, like: Trainer[Any]) -> None:
    """Load a state that another peer sent.

    `like`: a trainer with the same settings, whose optimizer has made at least one step. It defines the names, shapes
    and dtypes that are allowed. A parameter may lack a state of the optimizer, because no gradient has reached it yet.
    Raises ValueError if the state has other tensors, if training cannot lead to its optimizer state
    (optimizer_bounds.py), if a constant of the model differs, or if its random state is invalid.
    """
    assert trainer.optimizer is not None and like.optimizer is not None
    own = trees(like)
    own[1]["optimizer"] = with_zeros_for_missing_states(like.optimizer, own[1]["optimizer"])
    weights, optimizer, rest = [unpack(part, allowed) for part, allowed in zip(state, own, strict=True)]
    refuse_impossible(optimizer, trainer.clip_norm, gain=momentum_gain(trainer.optimizer))
    refuse_other_constants(trainer.model, rest["buffers"])
    copy_all(weights, trainer.outer.island.params)
    copy_all(rest["buffers"], dict(trainer.model.named_buffers()))
    trainer.optimizer.load_state_dict(with_tensors(trainer.optimizer.state_dict(), optimizer["optimizer"]))
    trainer.updates = int(optimizer["updates"])
    try:
        rng.set_device_state(trainer.device, rest["rng"])
    except RuntimeError as error:
        raise ValueError(f"the state of the random number generators is invalid: {error}") from error


def unpack(part: bytes, own: Any) -> Any:
    """Decode a part of a state that another peer sent. `own`: the same tree of this peer.

    Raises ValueError if names, shapes or dtypes differ, except that parameters may lack a state of the optimizer. Sizes
    are compared first, because decoding a larger tree could need much more memory than its bytes.
    """
    largest = canonical.pack(own)
    if len(canonical.header(part)) <= len(canonical.header(largest)) and fits(part, largest):
        tree = canonical.unpack(part)
        if spec(tree) == spec(without_missing_states(own, tree)):
            return tree
    raise ValueError("the names, shapes or dtypes of the tensors in the received state differ from this peer's")


def fits(part: bytes, largest: bytes) -> bool:
    """Return whether the header of an encoded tree is valid, and its JSON is not larger than that of `largest`."""
    try:
        return canonical.tree_size(part) <= canonical.tree_size(largest)
    except ValueError:
        return False


def refuse_other_constants(model: Module, received: Mapping[str, Tensor]) -> None:
    """Raise ValueError if a buffer in `received` that is not persistent differs from the model's own.

    Such buffers are not saved with a model, because they follow from its settings, for example rotary frequencies.
    """
    saved = model.state_dict()
    for name, own in model.named_buffers():
        if name not in saved and not torch.equal(received[name], own.cpu()):
            raise ValueError(f"the buffer {name} differs, although it follows from the settings of the model")


def trees(trainer: Trainer[Any]) -> tuple[Any, Any, Any]:
    """Return three trees of tensors: weights, optimizer state, and the rest of the state."""
    assert trainer.optimizer is not None, "audits need an inner optimizer"
    weights = {name: p.detach() for name, p in trainer.outer.island.params.items()}
    optimizer = {"updates": torch.tensor(trainer.updates), "optimizer": tensors_of(trainer.optimizer.state_dict())}
    rest = {"buffers": dict(trainer.model.named_buffers()), "rng": rng.get_device_state(trainer.device)}
    return weights, optimizer, rest


def tensors_of(tree: Any) -> Any:
    """Return an optimizer's state without its hyperparameters. Raises UserError if it contains more than tensors."""
    if isinstance(tree, dict):
        return {key: tensors_of(item) for key, item in tree.items() if key != HYPERPARAMETERS}
    if isinstance(tree, list):
        return [tensors_of(item) for item in tree]
    if not isinstance(tree, Tensor):
        raise UserError(
            f"exchange.audit needs an inner optimizer whose state consists of tensors, but its state contains a"
            f" {type(tree).__name__}: set inner=adamw or inner=muon, or exchange.audit=0"
        )
    return tree


def with_tensors(own: Any, received: Any) -> Any:
    """Return an optimizer's state with the tensors in `received` and the hyperparameters in `own`."""
    if isinstance(own, list):
        return [with_tensors(part, other) for part, other in zip(own, received, strict=True)]
    return {
        key: part if key == HYPERPARAMETERS else received[key] if key == STATE else with_tensors(part, received[key])
        for key, part in own.items()
    }


def with_zeros_for_missing_states(optimizer: Optimizer, tree: dict[str, Any]) -> dict[str, Any]:
    """Return an optimizer's tensors with zeros as the state of each parameter that has no state yet.

    The keys and dtypes are those of another parameter in the same group; if none has a state, nothing is added.
    """
    states, first = dict(tree[STATE]), 0
    for group in optimizer.param_groups:
        params = dict(enumerate(group["params"], start=first))
        first += len(params)
        other = max((i for i in params if i in states), key=lambda i: params[i].dim(), default=None)
        if other is not None:
            shape = params[other].shape
            states |= {
                i: {key: x.new_zeros(p.shape if x.shape == shape else x.shape) for key, x in states[other].items()}
                for i, p in params.items()
                if i not in states
            }
    return tree | {STATE: states}


def without_missing_states(own: Any, received: Any) -> Any:
    """Return the tree `own` without the optimizer states of the parameters that have none in `received`."""
    if not isinstance(own, dict) or not isinstance(received, dict):
        return own
    return {
        key: {i: x for i, x in item.items() if i in received.get(key, {})}
        if key == STATE and isinstance(item, dict) and isinstance(received.get(key), dict)
        else without_missing_states(item, received.get(key))
        for key, item in own.items()
    }


def spec(tree: Any) -> Any:
    """Return a tree with the dtype and shape of each tensor in place of the tensor."""
    if isinstance(tree, dict):
        return {key: spec(item) for key, item in tree.items()}
    if isinstance(tree, list):
        return [spec(item) for item in tree]
    return (tree.dtype, tuple(tree.shape)) if isinstance(tree, Tensor) else tree


def copy_all(received: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Copy each tensor in `received` to the tensor of the same name in `own`."""
    for name, x in own.items():
        x.copy_(received[name])
