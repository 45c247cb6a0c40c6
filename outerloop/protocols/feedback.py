"""The protocol of error feedback."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor


class Feedback(Protocol):
    """AXIS feedback: decides how values that were not sent are kept for later rounds."""

    remembers: bool
    """False if values that are not sent are discarded."""

    def add(self, name: str, delta: Tensor) -> Tensor:
        """Return the input of the compressor, given the pseudo-gradient (any shape). Changes no state."""
        ...

    def keep(self, name: str, x: Tensor, sent: Tensor) -> None:
        """Store x - sent. Called only when a round that includes this peer's payload lands."""
        ...

    def forget(self, name: str) -> None:
        """Discard the values kept under this name, so that `add` and `begin` return their tensors unchanged."""
        ...

    def begin(self, name: str, slow: Tensor) -> Tensor:
        """Return the fast weights with which inner steps continue after `slow` (any shape) has been updated.

        Returns a new tensor, or `slow` itself.
        """
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
