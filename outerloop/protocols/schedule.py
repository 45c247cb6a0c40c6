"""The protocols of a schedule: the one that every schedule implements, and that of an adaptive one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from outerloop.types import DueRounds, Round


class Schedule(Protocol):
    """AXIS schedule: determines which fragments launch and land after each inner step.

    Its methods have no side effects. Only a landing may change it (AdaptiveSchedule).
    """

    fragments: int
    """Number of parts of the model that are exchanged separately."""
    sync_every: int
    """H: inner steps between two rounds of one fragment."""
    delay: int
    """Inner steps between launch and landing."""
    early: bool
    """True if a peer may land a round before the delay is over, as soon as all messages of the round have arrived.

    Each peer decides this independently.
    """
    step_s: float
    """Wall-clock seconds that count as one inner step; 0 if the inner steps themselves are counted."""

    def due(self, inner_step: int) -> DueRounds:
        """Return the rounds to launch and land after `inner_step` (counted from 1)."""
        ...

    def fragment(self, index: int, names: Sequence[str]) -> list[str]:
        """Return the parameter names of one fragment, in model order."""
        ...

    def inner_steps(self, rounds: int) -> int:
        """Return the number of inner steps that a run of this many rounds takes, including the last landing."""
        ...


@runtime_checkable
class AdaptiveSchedule(Protocol):
    """A schedule that adapts H to landed rounds, whose contents are equal on all peers."""

    def observe(self, round: Round, agreement: float | None) -> str:
        """Adapt H to a landed round. Return a line that states the change and its reason, or "" if nothing changed.

        `agreement`: how far the payloads of the round agree, -1 .. 1; None if there was nothing to compare.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state, which is equal on all peers that have landed the same rounds."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
