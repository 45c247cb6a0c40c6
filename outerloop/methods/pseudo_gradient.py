"""Contributions of gradient-like methods: the pseudo-gradient Δ = φ − θ, or the gradients of a single step."""

from __future__ import annotations

from typing import Literal

from outerloop.types import Tensors, UserError


class Differences:
    """The half of a method that runs before the exchange. With equal means the slow weights of all peers stay equal.

    Args:
        reads: "weights" for pseudo-gradients, "gradients" for the gradient of a single step.

    Raises:
        UserError: if `reads` is neither of these.
    """

    shared = True
    sends: Literal["differences"] = "differences"

    def __init__(self, reads: Literal["weights", "gradients"]) -> None:
        if reads not in ("weights", "gradients"):
            raise UserError(f"method.reads={reads!r} is not one of weights, gradients")
        self.reads = reads

    def outgoing(self, slow: Tensors, read: Tensors) -> Tensors:
        """Return Δ = φ − θ, or the gradients unchanged."""
        if self.reads == "gradients":
            return read
        return {name: slow[name] - fast for name, fast in read.items()}
