"""Compute a step of torch.optim.SGD with the same bits on every machine.

    g ← ḡ + x · λ                                               λ: weight decay
    b ← b · μ + g · (1 − d);   b ← g in the first step          d: dampening
    x ← x − (g + b · μ) · η  (Nesterov),   x − b · η,   or without momentum  x − g · η

x: weights; ḡ: gradient; b: momentum buffer; μ: momentum factor; η: learning rate.

Every product and sum is rounded separately. torch's own step uses `add(alpha=)`, which rounds once on AVX2 (fused
multiply-add) and twice elsewhere. kernels/land.py computes the same step from sparse contributions.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def sgd(x: Tensor, gradient: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    """Update x (any shape) and its momentum in place with one SGD step.

    Args:
        x: slow weights.
        gradient: gradient ḡ, with the shape and dtype of x.
        state: optimizer state of x in torch's format: "momentum_buffer", None or missing before the first step with
            momentum.
        group: parameter group of x in the torch optimizer, with the settings.
    """
    g = gradient + x * group["weight_decay"] if group["weight_decay"] else gradient
    if group["momentum"]:
        b = moved(state, g, group)
        g = g + b * group["momentum"] if group["nesterov"] else b
    x.sub_(g * group["lr"])


def moved(state: dict[str, Any], g: Tensor, group: dict[str, Any]) -> Tensor:
    """Update the momentum buffer in `state` and return it."""
    b = state.get("momentum_buffer")
    if b is None:
        b = state["momentum_buffer"] = g.clone()
        return b
    return b.mul_(group["momentum"]).add_(g * (1 - group["dampening"]) if group["dampening"] else g)
