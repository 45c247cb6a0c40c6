"""Average the weights that were sent, keep the others (SPARTA: a random share of the weights every step).

    φ_i ← θ_i + (mean_j θ̂_j − θ̂_i)         θ̂_j: worker j's decoded payload

For a coordinate that was sent, every worker gets the mean. For one that was not, θ̂ is zero on all workers and each
keeps its own value. If all coordinates are sent, this is LocalSGD. Slow weights differ from worker to worker; their
mean moves only by training. A worker whose payload did not count keeps its φ, and with it its progress φ − θ.
"""

from __future__ import annotations

from typing import Any, Literal

from outerloop.types import Tensors


class Average:
    """Parameter averaging through a linear codec, without any optimizer state."""

    reads: Literal["weights"] = "weights"
    sends: Literal["some weights"] = "some weights"
    momentum = 0.0
    shared = False
    portable = True

    def __init__(self) -> None:
        self.sent: Tensors = {}

    def init(self, slow: Tensors) -> None:
        """Do nothing: there is nothing to allocate."""

    def outgoing(self, slow: Tensors, read: Tensors) -> Tensors:
        """Return θ, and remember it until the round lands."""
        sent = {name: fast.clone() for name, fast in read.items()}
        self.sent |= sent  # a fragment may launch while another one is in flight
        return sent

    def update(self, slow: Tensors, mean: Tensors, own: Tensors) -> None:
        """Set φ ← θ + (mean − own) for the parameters in `own`; the others do not move."""
        for name, sent in own.items():
            slow[name].copy_(self.sent[name]).add_(mean[name] - sent)

    def state_dict(self) -> dict[str, Any]:
        """Return θ of the last launch of each parameter."""
        return {"sent": dict(self.sent)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        self.sent = dict(state["sent"])
