"""NoLoCo (arXiv 2506.10911): gossip in pairs, with momentum and a pull towards the partner, but no collective.

φ are slow weights, θ fast weights, and δ the momentum. For worker i, mean_j is over i and its partners in the round:

    inside:    δ_i ← α δ_i + β mean_j(θ_j − φ_j) + γ (mean_j φ_j − φ_i);     φ_i ← φ_i + δ_i
    outside:   δ_i ← α δ_i + β mean_j(θ_j − φ_j);                φ_i ← φ_i + δ_i + γ (mean_j φ_j − φ_i)

If γ = β and the pull is inside, δ_i ← α δ_i + β (mean_j θ_j − φ_i). Then only θ needs to be sent: half the bytes.

The difference between the replicas of a pair shrinks only if 0 < γ < 2 (1 − α²) when the pull is inside, and only if
0 < γ < 2, for any 0 ≤ α < 1, when it is outside. With the pull inside, α = 0.9 and γ = 0.7, the difference grows by a
factor of 1.1 per round, although the paper's range allows these values.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch

from outerloop.types import Tensors, UserError


class NoLoCo:
    """Heavy-ball momentum with a consensus term. Slow weights differ between workers.

    Args:
        alpha: momentum α, at least 0 and below 1. The paper uses 0.5.
        beta: outer learning rate β, above 0. The paper uses 0.7.
        gamma: consensus strength γ; None means the value of β.
        consensus: whether the pull towards the partners is "inside" the momentum, as in the paper, or "outside" it.

    Raises:
        UserError: if a setting is out of range, or if replicas would drift apart; the message states what is required.
    """

    reads: Literal["weights"] = "weights"
    sends: Literal["weights"] = "weights"
    shared = False
    portable = True

    def __init__(self, *, alpha: float, beta: float, gamma: float | None, consensus: str) -> None:
        if consensus not in ("inside", "outside"):
            raise UserError(f"method.consensus={consensus!r} is not one of inside, outside: set it to inside")
        if not 0 <= alpha < 1:
            raise UserError(f"method.alpha={alpha} must be 0 or more, and below 1: set method.alpha=0.5")
        if not 0 < beta < math.inf:
            raise UserError(f"method.beta={beta} must be above 0, and finite: set method.beta=0.7")
        self.alpha, self.beta, self.gamma = alpha, beta, beta if gamma is None else gamma
        self.momentum = alpha
        self.inside = consensus == "inside"
        limit = 2 * (1 - alpha**2) if self.inside else 2.0
        if not 0 < self.gamma < limit:
            rule = f"0 < gamma < 2 (1 - alpha^2) = {limit:.3g}" if self.inside else "0 < gamma < 2"
            outside = ", or method.consensus=outside" if 0 < self.gamma < 2 else ""
            raise UserError(
                f"method.gamma={self.gamma} with alpha={alpha} lets replicas drift apart; {rule} is required:"
                f" set method.gamma={limit / 2:.3g}{outside}"
            )
        self.weights_only = self.inside and self.gamma == self.beta
        self.delta: Tensors = {}

    def init(self, slow: Tensors) -> None:
        """Set the momentum of every parameter to zero."""
        self.delta = {name: torch.zeros_like(x) for name, x in slow.items()}

    def outgoing(self, slow: Tensors, read: Tensors) -> Tensors:
        """Return the fast weights if `weights_only`, otherwise tensors (2, *shape) of the fast and the slow weights."""
        if self.weights_only:
            return {name: fast.clone() for name, fast in read.items()}
        return {name: torch.stack([fast.to(slow[name].dtype), slow[name]]) for name, fast in read.items()}

    def update(self, slow: Tensors, mean: Tensors, own: Tensors) -> None:
        """Update the momentum and the slow weights of the parameters in `mean`."""
        for name, m in mean.items():
            phi, delta = slow[name], self.delta[name]
            if self.weights_only:
                delta.mul_(self.alpha).add_((m - phi) * self.beta)
                phi.add_(delta)
                continue
            pull = (m[1] - phi) * self.gamma
            delta.mul_(self.alpha).add_((m[0] - m[1]) * self.beta)
            if self.inside:
                phi.add_(delta.add_(pull))
            else:
                phi.add_(delta).add_(pull)

    def state_dict(self) -> dict[str, Any]:
        """Return the momentum by parameter name."""
        return {"delta": dict(self.delta)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state returned by `state_dict`. Call this after `init`."""
        for name, x in self.delta.items():
            x.copy_(state["delta"][name])
