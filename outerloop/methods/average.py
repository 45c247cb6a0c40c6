"""Average what was sent, keep the rest (SPARTA: a random share of the weights every step).

    φ_i ← θ_i + (mean_j θ̂_j − θ̂_i)         θ̂_j: what worker j's payload decodes to

Where a coordinate was sent, every worker ends with the mean; where it was not, θ̂ is zero everywhere and each keeps its
own. With nothing left out it is LocalSGD. Slow weights differ from worker to worker, their mean moves only by training.
A worker whose payload did not count keeps its φ, and with it its progress φ − θ.
"""

from __future__ import annotations

from typing import Any, Literal

from outerloop.types import Tensors


class Average:
    """Parameter averaging through a linear codec; nothing evolves beside the weights."""

    reads: Literal["weights"] = "weights"
    sends: Literal["some weights"] = "some weights"
    momentum = 0.0
    shared = False
    portable = True

    def __init__(self) -> None:
        self.sent: Tensors = {}

    def init(self, slow: Tensors) -> None:
        """Nothing to allocate."""

    def outgoing(self, slow: Tensors, read: Tensors) -> Tensors:
        """θ, remembered until the round lands."""
        sent = {name: fast.clone() for name, fast in read.items()}
        self.sent |= sent  # a fragment may leave while another one is in flight
        return sent

    def update(self, slow: Tensors, mean: Tensors, own: Tensors) -> None:
        """φ ← θ + (mean − own), for the parameters that both name; the others do not move."""
        for name, sent in own.items():
            slow[name].copy_(self.sent[name]).add_(mean[name] - sent)

    def state_dict(self) -> dict[str, Any]:
        """θ of the last launch of every parameter."""
        return {"sent": dict(self.sent)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned."""
        self.sent = dict(state["sent"])
