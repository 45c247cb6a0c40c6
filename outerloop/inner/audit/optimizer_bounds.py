"""Check that clipped gradients can have led to the state of an inner optimizer that another peer sent.

If the norm of each gradient is clipped to c, all honest states satisfy

    |exp_avg| <= c                                    a weighted mean of gradients
    |momentum_buffer| <= c                            also a weighted mean (Muon)
    |momentum_buffer| <= c / (1 - μ)                  a sum of gradients with weights 1, μ, μ², ... (SGD, momentum μ)
    0 <= exp_avg_sq <= c²                             a weighted mean of squared gradients
    step >= 0,   updates >= 0

and all values are finite. Without this check, a peer could send moments so large that gradients vanish when they are
added and rounded. All later states would then follow from these moments alone, so a peer that does not train could
compute them, and a replay would confirm them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.optim import SGD, Optimizer

MEAN, MOMENTUM = "exp_avg", "momentum_buffer"
SQUARES = "exp_avg_sq"
COUNTS = ("step", "updates")
ROUNDING = 1.01
"""Factor by which rounding may exceed a bound; bfloat16 has a relative precision of 1/256."""


def momentum_gain(optimizer: Optimizer) -> float:
    """Return the maximum magnitude of a momentum buffer, relative to the maximum norm of the gradients.

    It is infinite for SGD with weight decay, which adds the weights to the gradients.
    """
    if not isinstance(optimizer, SGD):
        return 1.0
    return max(
        math.inf if group["weight_decay"] or group["momentum"] >= 1 else 1 / (1 - group["momentum"])
        for group in optimizer.param_groups
    )


def refuse_impossible(optimizer: Any, clip_norm: float | None, *, gain: float = 1.0) -> None:
    """Raise ValueError if gradients that are clipped to `clip_norm` (None: to any finite norm) cannot lead to a state.

    optimizer: a tree of tensors, as in audit/state.py. gain: the result of `momentum_gain`.
    """
    c = math.inf if clip_norm is None else clip_norm
    b = c * gain
    limits = {MEAN: (-c, c), MOMENTUM: (-b, b), SQUARES: (0.0, c * c)} | dict.fromkeys(COUNTS, (0.0, math.inf))
    for name, x in named_tensors(optimizer):
        lowest, highest = limits.get(name, (-math.inf, math.inf))
        values = x.double()
        if not (values.isfinite() & (values >= lowest * ROUNDING) & (values <= highest * ROUNDING)).all():
            raise ValueError(
                f"{name} in the optimizer's state must be finite and within {lowest:g} .. {highest:g}"
                f" (gradient norms are limited to {c:g})"
            )


def named_tensors(tree: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor of a tree of maps and lists, with the key under which it is stored."""
    if isinstance(tree, Tensor):
        yield name, tree
    elif isinstance(tree, dict):
        for key, item in tree.items():
            yield from named_tensors(item, str(key))
    else:
        for item in tree:
            yield from named_tensors(item, name)
