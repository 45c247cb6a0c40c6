"""Adagrad on the mean pseudo-gradient (FedAdagrad, arXiv 2003.00295): large steps where the mean has been small so far.

    v ← v + ḡ²;   φ ← φ − η ḡ / (√v + ε)          φ: slow weights;  ḡ: mean pseudo-gradient

Every operation is rounded separately, so that replicas stay bit-identical on different machines.
"""

from typing import Any

import torch

from outerloop.kernels.portable import square_root
from outerloop.methods.outer_optimizer import Differences
from outerloop.types import Tensors


class Adagrad(Differences):
    """Outer method that keeps a sum of squares, v, for each weight.

    Its base class sends the pseudo-gradient, slow minus fast weights.

    Args:
        lr: η, the learning rate.
        eps: ε; choose about the typical magnitude of the mean pseudo-gradient.
    """

    momentum = 0.0
    portable = True  # bit-identical on every machine; if False, peers compare their hardware at startup

    def __init__(self, *, lr: float, eps: float) -> None:
        super().__init__(reads="weights")
        self.lr, self.eps = lr, eps

    def init(self, slow: Tensors) -> None:
        """Set v to 0 for every weight."""
        self.squares = {name: torch.zeros_like(x) for name, x in slow.items()}

    def update(self, slow: Tensors, mean: Tensors, own: Tensors) -> None:
        """Take one step for the parameters in `mean`, in place."""
        for name, m in mean.items():
            v = self.squares[name].add_(m * m)
            slow[name].sub_(m * self.lr / (square_root(v) + self.eps))

    def state_dict(self) -> dict[str, Any]:
        """Return v for every parameter."""
        return {"squares": dict(self.squares)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.squares = dict(state["squares"])
