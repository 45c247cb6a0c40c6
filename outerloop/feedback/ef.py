"""Error feedback (SparseLoCo, arXiv 2508.15706): what was not sent is offered again, decayed.

    x = Δ + β e;    e ← x − x̂        x̂: what the peers decode from this peer's payload

The residual e holds the sparsification and the quantization error alike. β = 1 telescopes: over all rounds, what was
put in equals what was sent plus what is held. β < 1 forgets stale directions and plays the part of outer momentum.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from outerloop.feedback.residual_storage import storage_of
from outerloop.types import UserError


class ErrorFeedback:
    """Residual per parameter, created when first needed.

    Args:
        beta: share of the residual offered again, 0 .. 1. SparseLoCo: 0.95.
        bits: of the stored residual, 32 or 8 (a quarter of the memory, no longer exact).

    Raises:
        UserError: if `beta` is outside 0 .. 1 or `bits` neither.
    """

    remembers = True

    def __init__(self, *, beta: float, bits: int = 32) -> None:
        if not 0 <= beta <= 1:
            raise UserError(f"feedback.beta={beta} must be 0 .. 1: type feedback.beta=0.95")
        self.beta, self.residual = beta, storage_of(bits)

    def add(self, name: str, delta: Tensor) -> Tensor:
        """Δ (any shape) -> x = Δ + β e, a new tensor."""
        held = self.residual.get(name)
        return delta.clone() if held is None else delta + held * self.beta

    def keep(self, name: str, x: Tensor, sent: Tensor) -> None:
        """e ← x − x̂."""
        self.residual.put(name, x - sent)

    def begin(self, name: str, slow: Tensor) -> Tensor:
        """φ as it is: the inner steps begin from the slow weights."""
        return slow

    def at_launch(self, name: str) -> tuple[Tensor | None, Tensor | None, float]:
        """For the kernels: the residual as it is held, if there is one yet; its scales; its decay."""
        return *self.residual.in_place(name), self.beta

    def at_landing(self, name: str, like: Tensor) -> tuple[Tensor | None, Tensor | None, float]:
        """The same, to be written to; zeros of the shape of `like` before the first landing."""
        if self.residual.in_place(name)[0] is None:
            self.residual.put_zeros(name, like)
        return self.at_launch(name)

    def state_dict(self) -> dict[str, Any]:
        """The residual by parameter name."""
        return {"residual": self.residual.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a residual saved by `state_dict`."""
        self.residual.load_state_dict(state["residual"])
