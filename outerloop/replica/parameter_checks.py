"""Refuse trainable parameters that cannot be exchanged: without values, complex, sparse, or sharing memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from outerloop.replica.sharding import to_local
from outerloop.types import UserError


def check_trainable(params: Mapping[str, Parameter]) -> None:
    """Check trainable parameters (name -> parameter). Modules under `fully_shard` must be sharded now, not gathered.

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
        return f"is {p.dtype}, and complex numbers cannot be exchanged: replace it with real ones (torch.view_as_real)"
    if p.layout != torch.strided:
        return f"is {p.layout}, and only dense parameters can be exchanged: convert it with to_dense()"
    if overlaps_itself(to_local(p.detach())):
        return "is expanded, so several of its values share memory: replace it with a copy, Parameter(p.contiguous())"
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
    """A tensor, its place in the model (order), and the addresses of its first byte and of the byte after its last."""

    name: str
    order: int
    x: Tensor
    first: int
    end: int


def refuse_shared_memory(tensors: Mapping[str, Tensor]) -> None:
    """Raise UserError, naming two tensors, if they have a byte in common. Disjoint views of one buffer are allowed."""
    for cluster in (found for found in clusters(tensors) if len(found) > 1):
        first, end = cluster[0].first, max(placed.end for placed in cluster)
        used = torch.zeros(end - first, dtype=torch.bool)
        for index, other in enumerate(cluster):
            own = bytes_of(other, used, first)
            if own.any():
                raise shared_memory(*sorted((partner(other, cluster[:index]), other), key=lambda placed: placed.order))
            own.fill_(True)


def clusters(tensors: Mapping[str, Tensor]) -> Iterator[list[Placed]]:
    """Yield the tensors in groups, sorted by address, such that address ranges overlap only within a group."""
    placed = [place(name, order, x) for order, (name, x) in enumerate(tensors.items()) if has_memory(x)]
    cluster: list[Placed] = []
    for other in sorted(placed, key=lambda placed: (str(placed.x.device), placed.first)):
        if cluster and (other.x.device != cluster[0].x.device or other.first >= max(one.end for one in cluster)):
            yield cluster
            cluster = []
        cluster.append(other)
    if cluster:
        yield cluster


def partner(other: Placed, candidates: Sequence[Placed]) -> Placed:
    """Return the first candidate that has a byte in common with `other`."""
    first = min(one.first for one in candidates)
    used = torch.zeros(max(one.end for one in (*candidates, other)) - first, dtype=torch.bool)
    bytes_of(other, used, first).fill_(True)
    return next(one for one in candidates if bytes_of(one, used, first).any())


def shared_memory(early: Placed, late: Placed) -> UserError:
    """Return the error for two parameters that have a byte in common."""
    same = early.first == late.first and early.x.shape == late.x.shape
    advice = (
        f"assign the parameter itself ({late.name} = {early.name})"
        if same
        else f"give each its own memory ({late.name}.data = {late.name}.data.clone())"
    )
    return UserError(f"{late.name} and {early.name} share memory but are different parameters: {advice}")


def has_memory(x: Tensor) -> bool:
    """Return whether x has an address. Empty and meta tensors have none, and neither do some subclasses of Tensor."""
    return type(x) is Tensor and x.numel() > 0 and x.data_ptr() != 0


def place(name: str, order: int, x: Tensor) -> Placed:
    """Return where x, which has an address, is in memory."""
    last = sum(stride * (size - 1) for stride, size in zip(x.stride(), x.shape, strict=True))
    return Placed(name, order, x, x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size())


def bytes_of(placed: Placed, used: Tensor, first: int) -> Tensor:
    """Return a view of `used`, which has one value per byte from address `first` on, that covers the tensor's bytes."""
    size = placed.x.element_size()
    strides = [stride * size for stride in placed.x.stride()]
    return used.as_strided([*placed.x.shape, size], [*strides, 1], placed.first - first)
