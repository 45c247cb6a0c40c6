"""What a round cost this peer, from one landing to the next: for those parts that choose by it.

    compute_s = median seconds of an inner step · inner steps;  hidden_s = τ · (median seconds of an inner step)

The median leaves out evaluations and checkpoints, which come between two inner steps as well.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

from outerloop.protocols import Exchange
from outerloop.types import RoundCost


class RoundCostMeter:
    """Told when the outer loop has its turn between two inner steps.

    Args:
        exchange: what it counts is taken from here.
        delay: τ of the schedule, inner steps.
        step_s: of the schedule: seconds that count as an inner step; 0 where inner steps count themselves.
    """

    def __init__(self, exchange: Exchange, *, delay: int, step_s: float) -> None:
        self.exchange, self.delay, self.step_s = exchange, delay, step_s
        self.began_s: float | None = None
        self.steps_s: list[float] = []
        self.moved_s, self.bytes_sent = 0.0, 0

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """An inner step is over (the first one has no beginning); the next one begins when the outer loop is done."""
        if self.began_s is not None:
            self.steps_s.append(time.perf_counter() - self.began_s)
        try:
            yield
        finally:
            self.began_s = time.perf_counter()

    def cost(self, codec_s: float) -> RoundCost:
        """Of the time since this was asked last. `codec_s`: seconds of launching and landing."""
        step_s = statistics.median(self.steps_s) if self.steps_s else 0.0
        moved_s, bytes_sent = self.exchange.moving_s, self.exchange.bytes_sent
        cost = RoundCost(
            compute_s=step_s * len(self.steps_s),
            codec_s=codec_s,
            hidden_s=self.delay * (self.step_s or step_s),
            moved_s=moved_s - self.moved_s,
            bytes_sent=bytes_sent - self.bytes_sent,
        )
        self.steps_s, self.moved_s, self.bytes_sent = [], moved_s, bytes_sent
        return cost
