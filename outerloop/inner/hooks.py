"""The interface between a training loop and its outer loop, or the outer loop's replacement on other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from outerloop.core.round import RoundReport
from outerloop.protocols import Schedule
from outerloop.replica.island import Island


class StepHooks(Protocol):
    """The calls that any training loop makes; implemented by `OuterLoop`, `Follower` and `GatheredFollower`."""

    notifies_updates: bool
    """True if the caller calls `before_update` before every change of the weights; set by the caller."""

    @property
    def island(self) -> Island:
        """The trained parameters."""
        ...

    def before_update(self) -> float:
        """Wait until the weights of the model may change. Return the seconds that this took."""
        ...

    def after_inner_step(self, samples: int) -> Sequence[RoundReport]:
        """Count one inner step of this many training samples. Return the reports of the rounds that landed."""
        ...


class TrainerHooks(StepHooks, Protocol):
    """The calls that a worker's inner trainer makes; implemented by `OuterLoop` and `GatheredFollower`."""

    schedule: Schedule

    @property
    def inner_step(self) -> int:
        """The position in the run: the number of inner steps of the run that are over."""
        ...

    def evolved(self) -> dict[str, Any]:
        """Return all outer state of this rank."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `evolved` returned."""
        ...
