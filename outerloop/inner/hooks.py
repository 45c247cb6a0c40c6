"""Define the interfaces through which a training loop calls its outer loop.

On non-leader ranks, a follower with the same interface stands in for the outer loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from outerloop.core.round import RoundReport
from outerloop.protocols import Schedule
from outerloop.replica.island import Island
from outerloop.types import Round, Tensors


class StepHooks(Protocol):
    """The methods that any training loop calls; implemented by `OuterLoop`, `Follower` and `GatheredFollower`."""

    is_attached: bool
    """Whether hooks on an optimizer's step call this object (`outerloop.attach`)."""
    notifies_updates: bool
    """Set to True by a caller that calls `before_update` before every change to the weights."""

    @property
    def island(self) -> Island:
        """The island, which holds the trained parameters."""
        ...

    def before_update(self) -> float:
        """Wait until the model's weights may be changed. Return the seconds spent waiting."""
        ...

    def after_inner_step(self, samples: int) -> Sequence[RoundReport]:
        """Count one inner step of `samples` training samples. Return the reports of rounds that landed or failed."""
        ...


class TrainerHooks(StepHooks, Protocol):
    """The methods that a worker's inner trainer calls; implemented by `OuterLoop` and `GatheredFollower`."""

    schedule: Schedule

    @property
    def inner_step(self) -> int:
        """The number of inner steps that the run has completed."""
        ...

    @property
    def last_landed(self) -> Round | None:
        """The last round that landed in this process; None before the first one, and on ranks without outer state."""
        ...

    def temporary_weights(self, weights: Tensors) -> AbstractContextManager[None]:
        """Replace the model's weights inside the block, and its buffers by their last means if they are averaged."""
        ...

    def evolved(self) -> dict[str, Any]:
        """Return all outer state of this rank."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `evolved`."""
        ...
