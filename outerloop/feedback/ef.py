"""Error feedback (SparseLoCo, arXiv 2508.15706): add the values that were not sent to the next round, decayed by β.

    x = Δ + β e;    e ← x − x̂        Δ: this round's update; x̂: this peer's decoded payload

The residual e contains both the sparsification error and the quantization error. With β = 1 nothing is lost: over all
rounds, the sum of all Δ equals the sum of all x̂ plus e. β < 1 forgets stale directions and acts like outer momentum.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from outerloop.feedback.residual_storage import storage_of
from outerloop.kernels.specs import ResidualSpec, StoredResidual
from outerloop.types import UserError


class ErrorFeedback:
    """Error feedback with one residual per parameter, created when first needed.

    Args:
        beta: share of the residual added to the next round, 0 .. 1. SparseLoCo: 0.95.
        bits: bits per value of the stored residual, 32 or 8 (a quarter of the memory, but not exact).

    Raises:
        UserError: if `beta` is outside 0 .. 1 or `bits` is neither 32 nor 8.
    """

    remembers = True

    def __init__(self, *, beta: float, bits: int = 32) -> None:
        if not 0 <= beta <= 1:
            raise UserError(f"feedback.beta={beta} must be 0 .. 1: set feedback.beta=0.95")
        self.beta, self.residual = beta, storage_of(bits)

    def add(self, name: str, delta: Tensor) -> Tensor:
        """Return x = Δ + β e, the input of the compressor, as a new tensor. `delta`: Δ, any shape."""
        residual = self.residual.get(name)
        return delta.clone() if residual is None else delta + residual * self.beta

    def keep(self, name: str, x: Tensor, sent: Tensor) -> None:
        """Set the residual e ← x − x̂. `sent`: x̂."""
        self.residual.put(name, x - sent)

    def forget(self, name: str) -> None:
        """Discard the residual: e ← 0."""
        self.residual.drop(name)

    def begin(self, name: str, slow: Tensor) -> Tensor:
        """Return `slow` unchanged: the inner steps start from the slow weights."""
        return slow

    def residual_spec(self) -> ResidualSpec | None:
        """Return the description of the residual for the kernels. None for subclasses, whose arithmetic may differ."""
        if type(self) is not ErrorFeedback:
            return None
        return ResidualSpec(self.at_launch, self.at_landing, block=self.residual.block)

    def at_launch(self, name: str) -> StoredResidual:
        """Return the stored residual (None before the first landing), its scales (None for 32 bits), and the decay."""
        return *self.residual.in_place(name), self.beta

    def at_landing(self, name: str, like: Tensor) -> StoredResidual:
        """Create a residual of zeros with the shape of `like` if none exists yet. Return what `at_launch` returns."""
        if self.residual.in_place(name)[0] is None:
            self.residual.put_zeros(name, like)
        return self.at_launch(name)

    def state_dict(self) -> dict[str, Any]:
        """Return the residuals by parameter name."""
        return {"residual": self.residual.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state returned by `state_dict`."""
        self.residual.load_state_dict(state["residual"])
