"""One replica as plain tensors: the door between a model and the outer loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

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

    def read(self, names: Sequence[str], what: Literal["weights", "gradients"]) -> Tensors:
        """Fast weights or gradients as float32 or wider; a view where the model's own precision allows it."""
        if what == "weights":
            return {name: widened(self.params[name].detach()) for name in names}
        return {name: widened(gradient_of(self.params[name])) for name in names}

    def pick(self, names: Iterable[str]) -> Tensors:
        """Fast weights as they are, in the model's own precision."""
        return {name: self.params[name].detach() for name in names}

    @torch.no_grad()
    def write(self, slow: Tensors, *, merge_local: float) -> None:
        """θ ← merge_local · θ + (1 − merge_local) · φ, in place; at 0 a plain copy."""
        for name, x in slow.items():
            p = self.params[name]
            if merge_local:
                x = torch.lerp(x, p.detach().to(x.dtype), merge_local)
            p.copy_(x)

    @torch.no_grad()
    def add(self, tensors: Tensors, *, times: float) -> None:
        """θ ← θ + times · x, in place, rounded once to the model's precision."""
        for name, x in tensors.items():
            self.params[name].add_(x, alpha=times)


def gradient_of(p: Tensor) -> Tensor:
    """The gradient, or zeros where this step did not reach the parameter."""
    return torch.zeros_like(p) if p.grad is None else p.grad.detach()


def widened(x: Tensor) -> Tensor:
    """float32 for the half precisions, unchanged otherwise."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
