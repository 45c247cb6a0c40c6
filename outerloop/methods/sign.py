"""The sign of the mean (DeMo, arXiv 2411.19870): every coordinate moves by the same length.

    φ ← φ − η (sign(ḡ) + λ φ)

DeMo: reads = "gradients", H = 1, with feedback β = .999 and a DCT top-k compressor in front.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from outerloop.types import Tensors, UserError


class Sign:
    """Sign descent on the slow weights.

    Args:
        lr: η.
        weight_decay: λ, decoupled.
        reads: "weights" for pseudo-gradients, "gradients" for the gradient of a single step.
        lr_factor: round (from 0) -> factor of η; None keeps it constant.

    Raises:
        UserError: if `reads` is neither.
    """

    shared = True
    sends: Literal["differences"] = "differences"
    momentum = 0.0

    def __init__(
        self,
        *,
        lr: float,
        weight_decay: float = 0.0,
        reads: Literal["weights", "gradients"] = "weights",
        lr_factor: Callable[[int], float] | None = None,
    ) -> None:
        if reads not in ("weights", "gradients"):
            raise UserError(f"method.reads={reads!r} is not one of weights, gradients")
        self.lr, self.weight_decay, self.reads, self.lr_factor = lr, weight_decay, reads, lr_factor
        self.rounds: dict[str, int] = {}

    def init(self, slow: Tensors) -> None:
        """Nothing evolves but the count of rounds of each parameter."""
        self.rounds = dict.fromkeys(slow, 0)

    def outgoing(self, slow: Tensors, read: Tensors) -> Tensors:
        """Δ = φ − θ, or the gradients as they are."""
        if self.reads == "gradients":
            return read
        return {name: slow[name] - fast for name, fast in read.items()}

    def update(self, slow: Tensors, mean: Tensors, own: Tensors) -> None:
        """One step for the parameters that `mean` names."""
        for name, m in mean.items():
            lr = self.lr * (self.lr_factor(self.rounds[name]) if self.lr_factor else 1.0)
            slow[name].mul_(1 - lr * self.weight_decay).sub_(m.sign(), alpha=lr)
            self.rounds[name] += 1

    def state_dict(self) -> dict[str, Any]:
        """Rounds by parameter."""
        return {"rounds": dict(self.rounds)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.rounds = dict(state["rounds"])
