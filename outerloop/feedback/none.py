"""No feedback: what is not sent is forgotten. Right for lossless codecs and for 4 bits and more."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class NoFeedback:
    """x = Δ; nothing is kept. Below about 4 bits a value, or sparse, use `ef`."""

    remembers = False

    def add(self, name: str, delta: Tensor) -> Tensor:
        """Δ as it is."""
        return delta

    def keep(self, name: str, x: Tensor, sent: Tensor) -> None:
        """Keeps nothing."""

    def begin(self, name: str, slow: Tensor) -> Tensor:
        """φ as it is: the inner steps begin from the slow weights."""
        return slow

    def at_launch(self, name: str) -> tuple[None, None, float]:
        """For the kernels: no residual, no scales, no decay."""
        return None, None, 0.0

    def at_landing(self, name: str, like: Tensor) -> tuple[None, None, float]:
        """The same."""
        return self.at_launch(name)

    def state_dict(self) -> dict[str, Any]:
        """Empty: nothing evolves."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load."""
