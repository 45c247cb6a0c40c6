"""Step by the sign of the mean (DeMo, arXiv 2411.19870): every coordinate moves by the same amount.

    φ ← φ · (1 − η λ) − sign(ḡ) · η          φ: slow weights; ḡ: aggregated contributions

DeMo uses reads = "gradients", H = 1, error feedback with β = 0.999, and top-k compression of DCT coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

from outerloop.methods.outer_optimizer import Differences, check_factor
from outerloop.types import Tensors, UserError


class Sign(Differences):
    """Sign descent on the slow weights.

    Args:
        lr: learning rate η.
        weight_decay: decoupled weight decay λ.
        reads: "weights" for pseudo-gradients, "gradients" for the gradient of a single step.
        lr_factor: round (from 0) -> factor for η; None keeps η constant.

    Raises:
        UserError: if `reads` is neither "weights" nor "gradients", if lr_factor is not a function, or if the learning
            rate is out of range.
    """

    momentum = 0.0
    portable = True

    def __init__(
        self,
        *,
        lr: float,
        weight_decay: float = 0.0,
        reads: Literal["weights", "gradients"] = "weights",
        lr_factor: Callable[[int], float] | None = None,
    ) -> None:
        super().__init__(reads)
        check_factor("lr_factor", lr_factor)
        if not 0 <= lr < math.inf:
            raise UserError(f"method.lr={lr} must be 0 or more, and finite: set method.lr=0.001")
        self.lr, self.weight_decay, self.lr_factor = lr, weight_decay, lr_factor
        self.rounds: dict[str, int] = {}

    def init(self, slow: Tensors) -> None:
        """Reset the round count of each parameter, the only state."""
        self.rounds = dict.fromkeys(slow, 0)

    def update(self, slow: Tensors, mean: Tensors, own: Tensors) -> None:
        """Take one sign step on the parameters in `mean`."""
        for name, m in mean.items():
            rounds = self.rounds.get(name, 0)  # a received state may lack parameters
            lr = self.lr * (self.lr_factor(rounds) if self.lr_factor else 1.0)
            slow[name].mul_(1 - lr * self.weight_decay).sub_(m.sign().to(slow[name].dtype) * lr)
            self.rounds[name] = rounds + 1

    def state_dict(self) -> dict[str, Any]:
        """Return the number of rounds of each parameter, by name."""
        return {"rounds": dict(self.rounds)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state returned by `state_dict`."""
        self.rounds = dict(state["rounds"])
