"""LoCo (arXiv 2407.04480): a moving average of the error, stored in 8 bits, reset every T rounds.

    h = Δ + e;    e ← β e + (1 − β) (h − ĥ)        e ← 0 after every T-th round

Δ is this round's update, h the input of the compressor, ĥ this peer's decoded payload, and e the averaged error.

Use LoCo with dense codecs of at least 4 bits per value. Averaging smooths the error of a quantizer but does not
compensate for values that were never sent, so use `ef` with a sparse codec.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from outerloop.feedback.residual_storage import storage_of
from outerloop.types import UserError


class LoCo:
    """Error feedback that keeps a moving average of each parameter's error.

    Args:
        beta: weight of the old error, at least 0 and below 1. The authors' source code uses 0.8.
        reset_every: T, number of landed rounds of a parameter between two resets. The authors' source code uses 1024
            steps.
        bits: bits per value of the stored error, 8 or 32.

    Raises:
        UserError: if a setting is out of range.
    """

    remembers = True

    def __init__(self, *, beta: float, reset_every: int, bits: int = 8) -> None:
        if not 0 <= beta < 1:
            raise UserError(f"feedback.beta={beta} must be at least 0 and below 1: set feedback.beta=0.8")
        if reset_every < 1:
            raise UserError(f"feedback.reset_every={reset_every} must be at least 1: set feedback.reset_every=1024")
        self.beta, self.reset_every, self.error = beta, reset_every, storage_of(bits)
        self.landed: dict[str, int] = {}

    def add(self, name: str, delta: Tensor) -> Tensor:
        """Return h = Δ + e, the input of the compressor, as a new tensor. `delta`: Δ, any shape."""
        error = self.error.get(name)
        return delta.clone() if error is None else delta + error

    def keep(self, name: str, x: Tensor, sent: Tensor) -> None:
        """Set e ← β e + (1 − β) (h − ĥ), or e ← 0 if a reset is due. `x`: h, `sent`: ĥ."""
        self.landed[name] = self.landed.get(name, 0) + 1
        error = (x - sent) * (1 - self.beta)
        before = self.error.get(name)
        if before is not None:
            error.add_(before, alpha=self.beta)
        self.error.put(name, error.zero_() if self.landed[name] % self.reset_every == 0 else error)

    def forget(self, name: str) -> None:
        """Discard the averaged error: e ← 0."""
        self.error.drop(name)

    def begin(self, name: str, slow: Tensor) -> Tensor:
        """Return `slow` unchanged: the inner steps start from the slow weights."""
        return slow

    def state_dict(self) -> dict[str, Any]:
        """Return the averaged errors and the numbers of landed rounds, by parameter name."""
        return {"error": self.error.state_dict(), "landed": dict(self.landed)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state returned by `state_dict`."""
        self.error.load_state_dict(state["error"])
        self.landed = dict(state["landed"])
