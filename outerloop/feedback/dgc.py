"""Deep Gradient Compression (DGC, arXiv 1712.01887): momentum before compression, reset where a value was sent.

    u ← m u + Δ;    x = v + u                  momentum correction
    v ← x − x̂;      u ← 0 where x̂ ≠ 0          momentum factor masking; x̂: this peer's decoded payload

Δ is this round's update, u the momentum with factor m, v the sum of the values that have not been sent, and x the input
of the compressor.

A value that waits for many rounds is sent with the momentum that it would have accumulated in these rounds. Masking
resets this momentum once the value has been sent, so that it does not push in an outdated direction. The paper sends
exact values, so v becomes 0 for every value that was sent; with a quantizing codec, v becomes the quantization error.
A value sent as 0 counts as not sent.

Use DGC with sparse codecs: with a dense codec every value is masked, so that there is no momentum. The paper's warm-up
of the sparsity is a setting of compress/topk.py. With m = 0 this is error feedback with β = 1.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from outerloop.types import Requirement, Tensors, UserError


class DGC:
    """Error feedback on accumulated momentum steps. It stores two tensors per parameter from the first landing on.

    Args:
        momentum: m, at least 0 and below 1. The paper uses 0.9.

    Raises:
        UserError: if `momentum` is out of range.
    """

    remembers = True
    requires = (
        Requirement(
            "method",
            "momentum",
            0.0,
            "this feedback applies momentum before compression, and this method would apply it again:"
            " set method=sgd, or feedback=ef",
        ),
    )

    def __init__(self, *, momentum: float) -> None:
        if not 0 <= momentum < 1:
            raise UserError(f"feedback.momentum={momentum} must be at least 0 and below 1: set feedback.momentum=0.9")
        self.momentum = momentum
        self.velocity: Tensors = {}
        self.unsent: Tensors = {}

    def add(self, name: str, delta: Tensor) -> Tensor:
        """Return x = v + (m u + Δ), the input of the compressor. `delta`: Δ, any shape."""
        if name not in self.velocity:
            return delta
        return self.unsent[name] + (delta + self.velocity[name] * self.momentum)

    def keep(self, name: str, x: Tensor, sent: Tensor) -> None:
        """Set u ← x − v (that is, m u + Δ) where x̂ = 0, and u ← 0 elsewhere; then set v ← x − x̂. `sent`: x̂."""
        velocity = x - self.unsent[name] if name in self.unsent else x
        self.velocity[name] = velocity.masked_fill(sent != 0, 0.0)
        self.unsent[name] = x - sent

    def forget(self, name: str) -> None:
        """Discard the momentum and the unsent values: u ← 0, v ← 0."""
        self.velocity.pop(name, None)
        self.unsent.pop(name, None)

    def begin(self, name: str, slow: Tensor) -> Tensor:
        """Return `slow` unchanged: the inner steps start from the slow weights."""
        return slow

    def state_dict(self) -> dict[str, Any]:
        """Return the momentum u and the unsent values v, by parameter name."""
        return {"velocity": dict(self.velocity), "unsent": dict(self.unsent)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state returned by `state_dict`."""
        self.velocity, self.unsent = dict(state["velocity"]), dict(state["unsent"])
