"""Count how far a run advances per inner step of this peer: by one step, or by the steps that the clock has passed."""

from __future__ import annotations

import time


class StepClock:
    """Counts steps. Time-based steps start when the first inner step ends, because the time before it was not training.

    Args:
        step_s: seconds of a counted step; 0: every inner step counts as one.
    """

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.since_s: float | None = None

    def passed(self) -> int:
        """Return the number of counted steps that are over after an inner step. Remaining time is carried over."""
        if not self.step_s:
            return 1
        if self.since_s is None:
            self.since_s = time.monotonic()
        steps = int((time.monotonic() - self.since_s) / self.step_s)
        self.since_s += steps * self.step_s
        return steps

    def restart(self) -> None:
        """Restart the clock: a round has landed on this peer, as it has on the others."""
        self.since_s = time.monotonic()
