"""Local error feedback (the local model of CSER, arXiv 2007.13221): unsent values stay in the fast weights.

    x = Δ;    θ ← φ − β (x − x̂)        φ, θ: slow and fast weights; Δ = φ − θ; x̂: this peer's decoded payload

The next Δ = φ − θ then includes β (x − x̂), so the payload is the same as with `ef`, but no residual is stored. The
difference is where the inner steps start: `ef` resets the fast weights to φ and stores the residual separately; with
this feedback, a worker continues from its own progress. Fast weights differ between peers; slow weights stay equal.
Use it with sparse codecs, with which most of a worker's progress waits for many rounds. Fast weights should be float32,
because they contain the residual.

The share 1 − β of the unsent values that a round discards may decrease during a run:

    1 − β_n = (1 − β) / (1 + γ n (1 − β))          n: number of earlier rounds of this parameter,  γ: `growth`

so 1 / (1 − β_n), the mean number of rounds that a value is kept, increases by γ per round. Early in a run, old progress
is soon outdated; late, when the learning rate is low, it stays useful."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from outerloop.kernels.specs import ResidualSpec
from outerloop.types import Tensors, UserError

NO_RESIDUAL = (None, None, 0.0)
"""The StoredResidual of this feedback: no residual, no scales, and a decay of 0."""


class LocalError:
    """Error feedback that stores x − x̂ only during a landing; the kernels do not store it at all.

    Args:
        beta: β, share of the unsent values that stays in the fast weights, 0 .. 1; with 1, nothing is lost.
        growth: γ, at least 0; with 0, β is constant. A peer that joins late starts at β.

    Raises:
        UserError: if a setting is out of range.
    """

    remembers = True

    def __init__(self, *, beta: float, growth: float = 0.0) -> None:
        if not 0 <= beta <= 1:
            raise UserError(f"feedback.beta={beta} must be 0 .. 1: set feedback.beta=0.95")
        if not 0 <= growth < math.inf:
            raise UserError(f"feedback.growth={growth} must be at least 0: set feedback.growth=0 for a constant beta")
        self.beta, self.growth = beta, growth
        self.unsent: Tensors = {}
        self.landed: dict[str, int] = {}

    def beta_at(self, landed: int) -> float:
        """Return β_n, given n, the number of rounds of the same parameter that landed before."""
        if self.growth == 0:
            return self.beta
        discarded = 1 - self.beta
        return 1 - discarded / (1 + self.growth * landed * discarded)

    def add(self, name: str, delta: Tensor) -> Tensor:
        """Return `delta` unchanged: it already includes the values that were not sent."""
        return delta

    def keep(self, name: str, x: Tensor, sent: Tensor) -> None:
        """Store x − sent, the values that were not sent, until `begin` is called."""
        self.unsent[name] = x - sent

    def forget(self, name: str) -> None:
        """Discard the unsent values if `begin` has not been called since `keep` stored them."""
        self.unsent.pop(name, None)

    def begin(self, name: str, slow: Tensor) -> Tensor:
        """Return slow − β_n (x − x̂), computed in place in the stored x − x̂, to avoid an allocation."""
        if name not in self.unsent:
            return slow
        return self.unsent.pop(name).mul_(-self.next_share(name)).add_(slow)

    def next_share(self, name: str) -> float:
        """Return β_n of a parameter, and count one more round of it."""
        landed = self.landed.get(name, 0)
        self.landed[name] = landed + 1
        return self.beta_at(landed)

    def residual_spec(self) -> ResidualSpec:
        """Return the description for the kernels: no residual and no scales, but unsent values in the fast weights."""
        return ResidualSpec(lambda name: NO_RESIDUAL, lambda name, like: NO_RESIDUAL, unsent_share=self.next_share)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of landed rounds of each parameter, by name.

        The unsent values are not included, because the fast weights contain them.
        """
        return {"landed": dict(self.landed)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state returned by `state_dict`. States that older versions saved with a constant β are empty."""
        self.landed = dict(state.get("landed", {}))
