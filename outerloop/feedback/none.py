"""No feedback: values that are not sent are lost. Suited to lossless codecs and to codecs of 4 bits and more."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class NoFeedback:
    """No feedback: x = Δ, and nothing is kept. Below about 4 bits per value, or with a sparse codec, use `ef`."""

    remembers = False

    def add(self, name: str, delta: Tensor) -> Tensor:
        """Return Δ unchanged."""
        return delta

    def keep(self, name: str, x: Tensor, sent: Tensor) -> None:
        """Do nothing."""

    def begin(self, name: str, slow: Tensor) -> Tensor:
        """Return φ unchanged: the inner steps start from the slow weights."""
        return slow

    def at_launch(self, name: str) -> tuple[None, None, float]:
        """Return for the kernels: no residual, no scales, no decay."""
        return None, None, 0.0

    def at_landing(self, name: str, like: Tensor) -> tuple[None, None, float]:
        """Return the same as `at_launch`."""
        return self.at_launch(name)

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: there is no state."""
