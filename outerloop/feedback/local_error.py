"""Local error feedback (the local model of CSER, arXiv 2007.13221): what was not sent stays in the fast weights.

    x = Δ;    θ ← φ − β (x − x̂)        x̂: what the peers decode from this peer's payload

The next Δ = φ − θ then carries β (x − x̂) by itself, so peers are sent what `ef` would send, and no residual is stored.
The difference is where the inner steps begin: `ef` takes the fast weights back to φ and holds the rest aside, here a
worker goes on from its own progress. Fast weights differ between peers; slow weights stay equal. Right for sparse
codecs, where most of a worker's progress waits for many rounds; fast weights should be float32, for they hold the rest.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outerloop.types import Tensors, UserError


class LocalError:
    """Holds x − x̂ for as long as a landing takes; kernels write it into memory that is kept from landing to landing.

    Args:
        beta: share of what was not sent that stays in the fast weights, 0 .. 1; 1 forgets nothing.

    Raises:
        UserError: if `beta` is outside 0 .. 1.
    """

    remembers = True

    def __init__(self, *, beta: float) -> None:
        if not 0 <= beta <= 1:
            raise UserError(f"feedback.beta={beta} must be 0 .. 1: type feedback.beta=0.95")
        self.beta = beta
        self.unsent: Tensors = {}
        self.space: Tensors = {}

    def add(self, name: str, delta: Tensor) -> Tensor:
        """Δ as it is: the fast weights hold what was not sent."""
        return delta

    def keep(self, name: str, x: Tensor, sent: Tensor) -> None:
        """x − x̂, until `begin`."""
        self.unsent[name] = x - sent

    def begin(self, name: str, slow: Tensor) -> Tensor:
        """φ -> φ − β (x − x̂), in the memory of x − x̂: new pages cost more than the sum does."""
        return self.unsent.pop(name).mul_(-self.beta).add_(slow) if name in self.unsent else slow

    def at_launch(self, name: str) -> tuple[None, None, float]:
        """For the kernels: no residual, no scales, no decay."""
        return None, None, 0.0

    def at_landing(self, name: str, like: Tensor) -> tuple[Tensor, None, float]:
        """Where they write x − x̂, for `begin`: zeros of the shape of `like`, in the memory of the last landing."""
        if name not in self.space:
            self.space[name] = torch.empty_like(like, pin_memory=like.is_pinned())
        self.unsent[name] = self.space[name].zero_()
        return self.unsent[name], None, 0.0

    def state_dict(self) -> dict[str, Any]:
        """Empty: the fast weights hold everything between two landings."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""
