"""Present one replica as plain tensors: the interface between a model and the outer loop.

If the model is under `fully_shard`, each process holds a shard of every parameter, and the outer loop uses these
shards. Each process is a lane: it exchanges messages with the processes that hold the same shards in other islands. No
full tensor is built; slow weights, residual and momentum are sharded in the same way as the model. A lane compresses
its shard as a separate tensor, so chunks, scales and norms are those of the shard. A shard may be empty.

The outer state is stored on the model's device or on a separate device. On a separate device (the CPU), slow weights,
residual and momentum take no GPU memory. Launch and landing then run on the CPU, and copies of the fast weights are
transferred in both directions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from outerloop import wire
from outerloop.replica.parameter_checks import check_trainable
from outerloop.replica.sharding import (
    describe_layout,
    full_tensors,
    is_sharded,
    plain_name,
    reshard,
    to_global,
    to_local,
    unwrap,
)
from outerloop.types import Result, Tensors, UserError


def run_inline(work: Callable[..., Result], *args: Any) -> Result:
    """Call work(*args) in the current thread and return its result."""
    return work(*args)


class Island:
    """The trainable parameters of one model, by name. Tied parameters appear once; frozen parameters do not appear.

    Args:
        model: the model, on its final device.
        state_device: device of the outer state, such as "cpu", or None for the model's device.
        compute: function that calls work(*args) in the thread that computes for this model, and returns the result.

    Attributes:
        is_sharded: whether the model is under `fully_shard`, even with one process. If so, processes exchange shards.

    Raises:
        UserError: if the model has no trainable parameter, or one that cannot be exchanged (parameter_checks.py).
    """

    def __init__(
        self, model: Module, *, state_device: torch.device | None = None, compute: Callable[..., Any] = run_inline
    ) -> None:
        model = unwrap(model)
        self.compute = compute
        self.is_sharded = is_sharded(model)
        self.model, self.params = model, trainable_parameters(model)
        if not self.params:
            raise UserError(
                f"{type(model).__name__} has no trainable parameter: set requires_grad on the parameters to train"
            )
        check_trainable(self.params)
        device = next(iter(self.params.values())).device
        self.state_device = None if state_device == torch.device(device.type) else state_device

    def check_parameters(self) -> None:
        """Check that no trainable parameter was added or replaced after this island was created.

        Such a parameter would not be exchanged. Raises UserError, naming the parameter, if there is one.
        """
        reshard(self.model)
        for name, p in trainable_parameters(self.model).items():
            if self.params.get(name) is not p:
                how = "was replaced" if name in self.params else "was added"
                raise UserError(
                    f"{name} (shape {list(p.shape)}) {how} after the outer loop was created, and would not be"
                    " exchanged: create the outer loop when the model is complete, or set requires_grad_(False) on it"
                )

    @property
    def in_place(self) -> bool:
        """True if `read_raw` returns the model's own memory, to which kernels may write; False if it returns copies."""
        return self.state_device is None

    def local_shard(self, name: str) -> Tensor:
        """Return this process's part of a parameter (all of it, or a shard), sharing memory with the model."""
        return to_local(self.params[name].detach())

    def to_global(self, name: str, x: Tensor) -> Tensor:
        """Convert this process's part of a tensor of the outer state to a tensor with the parameter's global shape."""
        return to_global(x, self.params[name]).to(x.device)

    def to_state_device(self, x: Tensor) -> Tensor:
        """Return x on the device of the outer state: x itself if that is the model's device, otherwise a copy."""
        return x if self.state_device is None else copy_to(x, device=self.state_device)

    def read_parameter(self, name: str) -> Tensor:
        """Return a parameter, or this lane's shard of it, in its own dtype on the device of the outer state."""
        return self.to_state_device(self.local_shard(name))

    def layouts(self) -> dict[str, str]:
        """Return each parameter's shape, shard and contiguity, which must be equal on lanes that exchange it."""
        # The kernels skip non-contiguous tensors, and the dense pipeline, which handles these, rounds differently.
        return {
            name: describe_layout(p) + ("" if self.local_shard(name).is_contiguous() else ", not contiguous")
            for name, p in self.params.items()
        }

    @cached_property
    def frozen_hash(self) -> str:
        """64-bit hash of this process's part of all frozen parameters.

        It is "", which is not compared with the hashes of other peers, if no parameter is frozen, or if one is on the
        meta device because accelerate stores its values elsewhere (offloading). Covers names, shapes, shards, dtypes
        and exact bytes. Computed at the first access only.
        """
        reshard(self.model)
        frozen = self.frozen_parameters()
        if any(p.is_meta for p in frozen.values()):
            return ""
        return hash_parameters((name, describe_layout(p), to_local(p)) for name, p in frozen.items())

    def frozen_parameters(self) -> dict[str, Parameter]:
        """Return a mapping from name to each parameter that was not trainable when this island was created."""
        params = {plain_name(name): p for name, p in self.model.named_parameters()}
        return {name: p for name, p in params.items() if name not in self.params}

    def read(self, names: Sequence[str], what: Literal["weights", "gradients"]) -> Tensors:
        """Return fast weights or gradients in float32 or wider, without a copy if dtype and device allow it."""
        if what == "weights":
            return {name: to_float32(self.read_parameter(name)) for name in names}
        return {name: to_float32(self.to_state_device(gradient(self.params[name]))) for name in names}

    def read_raw(self, names: Iterable[str]) -> Tensors:
        """Return fast weights in the model's own dtype."""
        return {name: self.read_parameter(name) for name in names}

    @torch.no_grad()
    def write(self, slow: Tensors, *, merge_local: float) -> None:
        """Merge slow weights φ into fast weights θ in place: θ ← merge_local · θ + (1 − merge_local) · φ.

        If merge_local is 0, this is a plain copy.
        """
        for name, x in slow.items():
            fast = self.local_shard(name)
            if merge_local:
                x = torch.lerp(x.to(fast.device), fast.to(x.dtype), merge_local)
            fast.copy_(x)
        reshard(self.model)

    @torch.no_grad()
    def add(self, tensors: Tensors, *, alpha: float) -> None:
        """Add tensors x to fast weights θ in place, rounded once to the model's dtype: θ ← θ + alpha · x."""
        for name, x in tensors.items():
            fast = self.local_shard(name)
            fast.add_(x.to(fast.device), alpha=alpha)
        reshard(self.model)

    @contextmanager
    def temporary_weights(self, tensors: Tensors) -> Iterator[None]:
        """Replace the model's weights inside the block, for example to evaluate or export the slow weights."""
        fast = {name: x.clone() for name, x in self.read_raw(tensors).items()}
        self.write(tensors, merge_local=0.0)
        try:
            yield
        finally:
            self.write(fast, merge_local=0.0)

    def full_tensors(self, slow: Tensors, *, keep: bool) -> Tensors:
        """Gather full tensors on the CPU on ranks with `keep`; return an empty dictionary on other ranks.

        This is a collective if `slow` is sharded.
        """
        return full_tensors(slow, self.params, keep=keep)

    def run_on_followers(self, work: str, **details: Any) -> None:
        """Do nothing. `Gathered` overrides this method to run `work` on the other ranks too.

        In other islands, all ranks do the work independently, or there is only one rank.
        """

    @contextmanager
    def followers_serving(self) -> Iterator[None]:
        """Run the block, which contains the outer loop's work after an inner step. `Gathered` overrides this method."""
        yield


def trainable_parameters(model: Module) -> dict[str, Parameter]:
    """Return a mapping from name to trainable parameter, with names as in the unwrapped model.

    Tied parameters appear once.
    """
    return {plain_name(name): p for name, p in model.named_parameters() if p.requires_grad}


def hash_parameters(described: Iterable[tuple[str, str, Tensor]]) -> str:
    """Return one 64-bit hash of several parameters, in hexadecimal, or "" if `described` is empty.

    described: name, layout (sharding.describe_layout) and tensor of each parameter.
    """
    hashes = [
        wire.name_hash(f"{name} {layout} {x.dtype} {wire.tensors_hash({name: x})}") for name, layout, x in described
    ]
    return f"{wire.joint_hash(hashes):016x}" if hashes else ""


def gradient(p: Tensor) -> Tensor:
    """Return this process's part of a parameter's gradient, or zeros if the last step computed no gradient for it.

    A sparse gradient, as of `torch.nn.Embedding(sparse=True)`, becomes dense.
    """
    grad = torch.zeros_like(p) if p.grad is None else p.grad.to_dense() if p.grad.is_sparse else p.grad
    return to_local(grad).detach()


def copy_to(x: Tensor, *, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return a contiguous copy on a device.

    A CPU copy of a GPU tensor is in pinned memory, so that copying it back to the GPU needs no intermediate copy.
    """
    pinned = device.type == "cpu" and (x.is_cuda or x.is_pinned())
    return torch.empty(x.shape, dtype=dtype or x.dtype, device=device, pin_memory=pinned).copy_(x)


def to_float32(x: Tensor) -> Tensor:
    """Return x converted to float32 if it is float16 or bfloat16, otherwise x itself."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
