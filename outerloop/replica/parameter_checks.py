"""Check that the trainable parameters of a model can be exchanged: each has values, in memory of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from outerloop.replica.sharding import to_local
from outerloop.types import UserError


def check_trainable(params: Mapping[str, Parameter]) -> None:
    """Check trainable parameters, by name. A module under `fully_shard` must hold its shards.

    Raises UserError, naming the parameter, if one is complex, sparse or not initialized, or if it overlaps with itself
    or with another one in memory.
    """
    for name, p in params.items():
        if reason := refusal(p):
            raise UserError(f"{name} {reason}, or set requires_grad_(False) on it")
    refuse_shared_memory({name: to_local(p.detach()) for name, p in params.items()})


def refusal(p: Parameter) -> str:
    """Return why a trainable parameter cannot be exchanged, and what to do, or "" if it can be."""
    if is_lazy(p):
        return "is not initialized: call the model on a batch before the outer loop is created"
    if p.is_complex():
        return (
            f"is {p.dtype}, and complex parameters cannot be exchanged: store it as real numbers (torch.view_as_real)"
        )
    if p.layout != torch.strided:
        return f"is {p.layout}, and only dense parameters can be exchanged: convert it with to_dense()"
    if overlaps_itself(to_local(p.detach())):
        return "is expanded, so that several of its values share memory: store a copy of it (contiguous())"
    return ""


def refuse_meta(params: Mapping[str, Parameter]) -> None:
    """Raise UserError, naming the parameter, if one is on the meta device, which stores no values."""
    for name, p in params.items():
        if p.device.type == "meta":
            raise UserError(
                f"{name} is on the meta device, which stores no values: call to_empty(device=...) on the model and"
                " initialize it before the outer loop is created"
            )


def overlaps_itself(x: Tensor) -> bool:
    """Return whether values of x share memory, as in an expanded tensor. False for all slices of dense tensors."""
    span = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1 and stride < span:
            return x.numel() > 0
        span += stride * (size - 1)
    return False


@dataclass
class Placed:
    """A tensor and the addresses of its first byte and of the byte after its last one."""

    name: str
    order: int
    x: Tensor
    first: int
    end: int


def refuse_shared_memory(tensors: Mapping[str, Tensor]) -> None:
    """Raise UserError, naming two tensors, if they have a byte in common. Disjoint views of one buffer are allowed."""
    for one, other in neighbors(tensors):
        if shares_bytes(one, other):
            early, late = sorted((one, other), key=lambda placed: placed.order)
            same = early.first == late.first and early.x.shape == late.x.shape
            advice = (
                f"assign the parameter itself ({late.name} = {early.name})"
                if same
                else f"give each its own memory ({late.name}.data = {late.name}.data.clone())"
            )
            raise UserError(f"{late.name} and {early.name} share memory but are different parameters: {advice}")


def neighbors(tensors: Mapping[str, Tensor]) -> Iterator[tuple[Placed, Placed]]:
    """Yield all pairs of tensors on one device whose address ranges overlap."""
    placed = [place(name, order, x) for order, (name, x) in enumerate(tensors.items()) if has_memory(x)]
    active: list[Placed] = []
    for other in sorted(placed, key=lambda placed: (str(placed.x.device), placed.first)):
        active = [one for one in active if one.x.device == other.x.device and one.end > other.first]
        yield from ((one, other) for one in active)
        active.append(other)


def has_memory(x: Tensor) -> bool:
    """Return whether x has an address. Empty and meta tensors have none, and neither do some subclasses of Tensor."""
    return type(x) is Tensor and x.numel() > 0 and x.data_ptr() != 0


def place(name: str, order: int, x: Tensor) -> Placed:
    """Return where x, which has an address, is in memory."""
    last = sum(stride * (size - 1) for stride, size in zip(x.stride(), x.shape, strict=True))
    return Placed(name, order, x, x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size())


def shares_bytes(one: Placed, other: Placed) -> bool:
    """Return whether two tensors whose address ranges overlap have a byte in common. Columns of a matrix do not."""
    if all(placed.end - placed.first == placed.x.nbytes for placed in (one, other)):
        return True
    first = min(one.first, other.first)
    used = torch.zeros(max(one.end, other.end) - first, dtype=torch.bool)
    bytes_of(one, used, first).fill_(True)
    return bool(bytes_of(other, used, first).any())


def bytes_of(placed: Placed, used: Tensor, first: int) -> Tensor:
    """Return the view of `used`, which has one value for each byte from address `first` on, at the tensor's bytes."""
    size = placed.x.element_size()
    strides = [stride * size for stride in placed.x.stride()]
    return used.as_strided([*placed.x.shape, size], [*strides, 1], placed.first - first)
