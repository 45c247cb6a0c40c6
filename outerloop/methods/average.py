"""Average what was sent, keep the rest (SPARTA: a random share of the weights every step).

    φ_i ← θ_i + (mean_j θ̂_j − θ̂_i)         θ̂_j: what worker j's payload decodes to

Where a coordinate was sent, every worker ends with the mean; where it was not, θ̂ is zero everywhere and each keeps its
own. With nothing left out it is LocalSGD. Slow weights differ from worker to worker, their mean moves only by training.
"""

from __future__ import annotations

from typing import Any, Literal

from outerloop.types import Tensors


class Average:
    """Parameter averaging through a linear codec; nothing evolves beside the weights."""

    reads: Literal["weights"] = "weights"
    sends: Literal["differences"] = "differences"
    momentum = 0.0
    shared = False
    portable = True

    def __init__(self) -> None:
        self.sent: Tensors = {}

    def init(self, slow: Tensors) -> None:
        """Nothing to allocate."""

    def outgoing(self, slow: Tensors, read: Tensors) -> Tensors:
        """θ, remembered until the round lands."""
        self.sent = {name: fast.clone() for name, fast in read.items()}
        return self.sent

    def update(self, slow: Tensors, mean: Tensors, own: Tensors) -> None:
        """φ ← θ + mean − own, for the parameters that `mean` names."""
        for name, m in mean.items():
            slow[name].copy_(self.sent[name])
            if name in own:
                slow[name].add_(m - own[name])

    def state_dict(self) -> dict[str, Any]:
        """θ of the round in flight."""
        return {"sent": dict(self.sent)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.sent = dict(state["sent"])
