"""Compute a step of torch.optim.AdamW (arXiv 1711.05101) with the same bits on every machine.

    x ← x · (1 − η λ)                                            λ: decoupled weight decay
    m ← m + (g − m) · (1 − β₁);   v ← v · β₂ + (g · g) · (1 − β₂)
    x ← x − (m · η / (1 − β₁ᵗ)) / (√v / √(1 − β₂ᵗ) + ε)          t: steps of x so far, including this one

x: weights; g: gradient; m, v: moments; η: learning rate; β₁, β₂, ε: as in torch.

Each operation is rounded separately. torch's own step uses `lerp`, `addcmul`, `addcdiv`, MKL's sqrt and the C library's
pow, whose last bits depend on the machine. Scalars such as η / (1 − β₁ᵗ) are computed in float64.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from outerloop.kernels.portable import divide, power, square_root


def adamw(x: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    """Update x (any shape) and its moments in place with one AdamW step.

    Args:
        x: slow weights.
        g: gradient, with the shape and dtype of x.
        state: optimizer state of x in torch's format: "step", "exp_avg" (m) and "exp_avg_sq" (v); empty before the
            first step.
        group: parameter group of x in the torch optimizer, with the settings.
    """
    if not state:
        step = torch.zeros((), dtype=torch.float32)
        state |= {"step": step, "exp_avg": torch.zeros_like(x), "exp_avg_sq": torch.zeros_like(x)}
    state["step"] += 1
    (beta1, beta2), lr, m, v = group["betas"], group["lr"], state["exp_avg"], state["exp_avg_sq"]
    bias1, bias2 = (1 - power(beta, int(state["step"])) for beta in (beta1, beta2))
    x.mul_(1 - lr * group["weight_decay"])
    m.add_((g - m) * (1 - beta1))
    v.mul_(beta2).add_((g * g) * (1 - beta2))
    x.sub_(m * (lr / bias1) / (divide(square_root(v), math.sqrt(bias2)) + group["eps"]))
