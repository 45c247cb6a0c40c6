"""Average the weights that were sent, and keep the others (SPARTA: a random share of the weights in every step).

    φ_i ← θ_i + (mean_j θ̂_j − θ̂_i)         φ, θ: slow and fast weights; θ̂_j: worker j's decoded payload

A coordinate that was sent becomes the mean on every worker. For a coordinate that was not sent, θ̂ is zero on all
workers, and each worker keeps its own value. If all coordinates are sent, this is LocalSGD. Slow weights differ between
workers. A round does not change the mean of the workers' weights; only training does. A worker whose payload was not
included in the round keeps its φ, so that its progress φ − θ is sent in a later round.
"""

from __future__ import annotations

from typing import Any, Literal

from outerloop.types import Tensors


class Average:
    """Parameter averaging with a linear codec, without optimizer state."""

    reads: Literal["weights"] = "weights"
    sends: Literal["some weights"] = "some weights"
    momentum = 0.0
    shared = False
    portable = True

    def __init__(self) -> None:
        self.sent: Tensors = {}

    def init(self, slow: Tensors) -> None:
        """Do nothing, because there is no state to allocate."""

    def outgoing(self, slow: Tensors, read: Tensors) -> Tensors:
        """Return a copy of the fast weights `read`, and store it until the round lands."""
        sent = {name: fast.clone() for name, fast in read.items()}
        self.sent |= sent  # adds, because other fragments may be in flight
        return sent

    def update(self, slow: Tensors, mean: Tensors, own: Tensors) -> None:
        """Set slow ← θ + (mean − own) for the parameters in `own`. θ: the weights returned by `outgoing`."""
        for name, sent in own.items():
            slow[name].copy_(self.sent[name]).add_(mean[name] - sent)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of each parameter's fast weights from its last launch."""
        return {"sent": dict(self.sent)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state returned by `state_dict`."""
        self.sent = dict(state["sent"])
