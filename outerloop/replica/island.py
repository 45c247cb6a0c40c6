"""One replica as plain tensors: the door between a model and the outer loop.

Of a model under `fully_shard` a process holds a shard of every parameter, and that is what the outer loop sees: each
process is a lane, which meets the process that holds the same shards of the other islands. No full tensor is built;
slow weights, residual and momentum are sharded as the model is. A lane compresses its shard as a tensor of its own, so
chunks, scales and norms are those of the shard. A shard may have no value at all.

Outer state lies with the model, or on a device of its own: the room of slow weights, residual and momentum on a GPU is
then free, and a round's launch and landing are paid on the CPU, which copies of the fast weights go to and come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from outerloop.replica.sharding import cut_again, is_cut, layout_of, local_of, unwrapped, whole_of
from outerloop.types import Made, Tensors, UserError


def here(work: Callable[..., Made], *args: Any) -> Made:
    """Do it in this thread."""
    return work(*args)


class Island:
    """The trainable parameters of one model, by name; tied parameters appear once, frozen ones not at all.

    Args:
        model: on its device.
        state_device: of the outer state, if that shall not lie with the model: "cpu".
        compute: does work(*args) in the thread that computes for this model, and returns what that does.

    Raises:
        UserError: if the model has no trainable parameter.
    """

    def __init__(
        self, model: Module, *, state_device: torch.device | None = None, compute: Callable[..., Any] = here
    ) -> None:
        model = unwrapped(model)
        self.compute = compute
        cut_again(model)
        self.model, self.params = model, trainable(model)
        if not self.params:
            raise UserError(
                f"{type(model).__name__} has no trainable parameter: set requires_grad on what should train"
            )
        there = next(iter(self.params.values())).device
        self.state_device = None if state_device == torch.device(there.type) else state_device

    def check_whole(self) -> None:
        """Raises UserError naming a trainable parameter that the model has got since, and nobody would exchange."""
        cut_again(self.model)
        for name, p in trainable(self.model).items():
            if self.params.get(name) is not p:
                how = "was replaced" if name in self.params else "was added"
                raise UserError(
                    f"{name} (shape {list(p.shape)}) {how} after the outer loop was made, and would not be exchanged:"
                    " make the outer loop when the model is complete, or set requires_grad_(False) on it"
                )

    @property
    def in_place(self) -> bool:
        """Whether what `pick` gives is the model's own memory, so that kernels may write into it; else it is a copy."""
        return self.state_device is None

    def held(self, name: str) -> Tensor:
        """A parameter as this process holds it, in the model's memory: the whole of it, or a shard."""
        return local_of(self.params[name].detach())

    def brought(self, x: Tensor) -> Tensor:
        """x where the outer state is: itself, or a copy elsewhere."""
        return x if self.state_device is None else copied(x, device=self.state_device)

    def local(self, name: str) -> Tensor:
        """A parameter in the model's own precision where the outer state is: the whole of it, or this lane's shard."""
        return self.brought(self.held(name))

    def layouts(self) -> dict[str, str]:
        """What lanes that meet must have in common, by name: shapes, and which shard of them is here."""
        return {name: layout_of(p) + self.order_of(name) for name, p in self.params.items()}

    def order_of(self, name: str) -> str:
        """Of memory, where kernels do not take it: others of this shape round otherwise, so they may not meet."""
        return "" if self.held(name).is_contiguous() else ", not contiguous"

    def read(self, names: Sequence[str], what: Literal["weights", "gradients"]) -> Tensors:
        """Fast weights or gradients as float32 or wider; a view where the model's precision and device allow it."""
        if what == "weights":
            return {name: widened(self.local(name)) for name in names}
        return {name: widened(self.brought(gradient_of(self.params[name]))) for name in names}

    def pick(self, names: Iterable[str]) -> Tensors:
        """Fast weights as they are, in the model's own precision."""
        return {name: self.local(name) for name in names}

    @torch.no_grad()
    def write(self, slow: Tensors, *, merge_local: float) -> None:
        """θ ← merge_local · θ + (1 − merge_local) · φ, in place; at 0 a plain copy."""
        for name, x in slow.items():
            fast = self.held(name)
            if merge_local:
                x = torch.lerp(x.to(fast.device), fast.to(x.dtype), merge_local)
            fast.copy_(x)
        cut_again(self.model)

    @torch.no_grad()
    def add(self, tensors: Tensors, *, times: float) -> None:
        """θ ← θ + times · x, in place, rounded once to the model's precision."""
        for name, x in tensors.items():
            fast = self.held(name)
            fast.add_(x.to(fast.device), alpha=times)
        cut_again(self.model)

    @property
    def in_lanes(self) -> bool:
        """Whether the model is under `fully_shard`, so that a process exchanges its shards, be it the only one."""
        return is_cut(self.model)

    def complete(self, slow: Tensors, *, keep: bool) -> Tensors:
        """Tensors cut as the parameters are, whole and on the CPU, for who shall `keep` them. A collective in lanes."""
        return whole_of(slow, self.params, keep=keep)

    def call(self, work: str, **details: Any) -> None:
        """All ranks of the island do this work by themselves, or there are no others."""

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """While the outer loop does what is due after an inner step."""
        yield


def trainable(model: Module) -> dict[str, Parameter]:
    """Trainable parameters by name; tied ones once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def gradient_of(p: Tensor) -> Tensor:
    """The gradient, or zeros where this step did not reach the parameter."""
    return local_of(torch.zeros_like(p) if p.grad is None else p.grad).detach()


def copied(x: Tensor, *, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """A contiguous copy on a device, page-locked where it stands for what is on a GPU: the way back is then direct."""
    pinned = device.type == "cpu" and (x.is_cuda or x.is_pinned())
    return torch.empty(x.shape, dtype=dtype or x.dtype, device=device, pin_memory=pinned).copy_(x)


def widened(x: Tensor) -> Tensor:
    """float32 for the half precisions, unchanged otherwise."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
