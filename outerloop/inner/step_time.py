"""Time budget of a worker: inner steps, blocking communication, and waiting for other peers.

    utilization = compute / (compute + communication + others)

Communication is all work of the outer loop between two inner steps except waiting for other peers: launching, waiting
for bytes still in transit, and landing. Communication that overlaps with inner steps is not counted. Evaluations and
checkpoints belong to none of the three.
"""

from __future__ import annotations

from outerloop.core.round import RoundReport
from outerloop.inner.trainer import StepReport


class StepTimeBudget:
    """The times of all inner steps since the last round landed."""

    def __init__(self) -> None:
        self.compute_s = self.outer_s = 0.0

    def add(self, step: StepReport) -> None:
        """Add one inner step and the outer-loop work after it."""
        self.compute_s += step.compute_s
        self.outer_s += step.outer_s

    def on(self, report: RoundReport) -> dict[str, float]:
        """Return the seconds spent since the previous round landed, and reset the sums."""
        others_s = min(self.outer_s, report.peer_wait_s)
        spent = {
            "compute_s": self.compute_s,
            "communication_s": self.outer_s - others_s,
            "others_s": others_s,
        }
        self.compute_s = self.outer_s = 0.0
        return spent
