"""Measure what a round cost this peer, from one landing to the next, for parts that adapt to it.

    compute_s = median seconds of an inner step · inner steps;  hidden_s = τ · (median seconds of an inner step)

The median ignores evaluations and checkpoints, which also take place between two inner steps.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

from outerloop.exchange_protocols import metered
from outerloop.protocols import Exchange
from outerloop.types import RoundCost


class RoundCostMeter:
    """Measures inner steps, transfer time and bytes from one landing to the next.

    Args:
        exchange: provides the transfer time and the bytes sent.
        delay: τ of the schedule, in inner steps.
        step_s: of the schedule: seconds that count as an inner step; 0 if the inner steps themselves are counted.
    """

    def __init__(self, exchange: Exchange, *, delay: int, step_s: float) -> None:
        self.traffic, self.delay, self.step_s = metered(exchange), delay, step_s
        self.began_s: float | None = None
        self.steps_s: list[float] = []
        self.transfer_before_s, self.bytes_before = 0.0, 0

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """Mark the end of an inner step on entry, and the beginning of the next one on exit.

        The first inner step is not measured, since its beginning is unknown.
        """
        if self.began_s is not None:
            self.steps_s.append(time.perf_counter() - self.began_s)
        try:
            yield
        finally:
            self.began_s = time.perf_counter()

    def cost(self, codec_s: float) -> RoundCost:
        """Return the cost since the last call. `codec_s`: seconds of launching and landing."""
        step_s = statistics.median(self.steps_s) if self.steps_s else 0.0
        transfer_s, bytes_sent = self.traffic.transfer_s, self.traffic.bytes_sent
        cost = RoundCost(
            compute_s=step_s * len(self.steps_s),
            codec_s=codec_s,
            hidden_s=self.delay * (self.step_s or step_s),
            transfer_s=transfer_s - self.transfer_before_s,
            bytes_sent=bytes_sent - self.bytes_before,
        )
        self.steps_s, self.transfer_before_s, self.bytes_before = [], transfer_s, bytes_sent
        return cost
