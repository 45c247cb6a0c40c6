"""Where a worker's time goes: inner steps, communication that they had to stop for, waiting for others.

    utilization = compute / (compute + communication + others)

Communication is everything that the outer loop did between two inner steps, waiting for others apart: launching, bytes
that were still on their way, landing. What is hidden behind inner steps costs nothing here. Evaluations and checkpoints
are none of the three.
"""

from __future__ import annotations

from outerloop.core.round import RoundReport
from outerloop.inner.trainer import StepReport


class StepTimeBudget:
    """Adds up steps until a round has landed."""

    def __init__(self) -> None:
        self.compute_s = self.outer_s = 0.0

    def add(self, step: StepReport) -> None:
        """One inner step, and what came after it."""
        self.compute_s += step.compute_s
        self.outer_s += step.outer_s

    def on(self, report: RoundReport) -> dict[str, float]:
        """Seconds since the round that landed before this one; the next one begins at nothing."""
        others_s = min(self.outer_s, report.others_s)
        spent = {
            "compute_s": self.compute_s,
            "communication_s": self.outer_s - others_s,
            "others_s": others_s,
        }
        self.compute_s = self.outer_s = 0.0
        return spent
