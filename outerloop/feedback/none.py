"""No feedback: values that are not sent are lost. Use it with lossless codecs and codecs of at least 4 bits."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from outerloop.kernels.specs import ResidualSpec


class NoFeedback:
    """No feedback: unsent values are discarded. Below about 4 bits per value, or with a sparse codec, use `ef`."""

    remembers = False

    def add(self, name: str, delta: Tensor) -> Tensor:
        """Return `delta` unchanged."""
        return delta

    def keep(self, name: str, x: Tensor, sent: Tensor) -> None:
        """Do nothing, because unsent values are discarded."""

    def forget(self, name: str) -> None:
        """Do nothing, because no value is kept."""

    def begin(self, name: str, slow: Tensor) -> Tensor:
        """Return `slow` unchanged: the inner steps start from the slow weights."""
        return slow

    def residual_spec(self) -> ResidualSpec:
        """Return the description for the kernels, in which there is no residual."""
        nothing = None, None, 0.0
        return ResidualSpec(lambda name: nothing, lambda name, like: nothing)

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing: there is no state."""
