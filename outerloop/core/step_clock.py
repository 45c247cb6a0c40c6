"""How far a run goes on while this peer takes one inner step: by one step, or by those that the clock has passed."""

from __future__ import annotations

import time


class StepClock:
    """Time-based steps begin when the first inner step ends: what came before it was no training.

    Args:
        step_s: seconds of a counted step; 0: every inner step counts as one.
    """

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.since_s: float | None = None

    def passed(self) -> int:
        """Counted steps that are over, now that an inner step is; what is left of the clock is carried over."""
        if not self.step_s:
            return 1
        if self.since_s is None:
            self.since_s = time.monotonic()
        steps = int((time.monotonic() - self.since_s) / self.step_s)
        self.since_s += steps * self.step_s
        return steps

    def restart(self) -> None:
        """The clock begins anew: a round has landed here, as it has at the others."""
        self.since_s = time.monotonic()
