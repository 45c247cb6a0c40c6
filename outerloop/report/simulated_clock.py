"""Compute the time at which a worker would have reached each inner step at a chosen bandwidth.

    seconds(t) = t · c + Σ over rounds r landed by step t of max(0, 8 · b_r / B − τ · c)

c is the worker's measured time per inner step in seconds, without waits, evaluations and saves. b_r is the number of
payload bytes of round r times the number of copies that the worker sent, without the state that newcomers download. B
is the bandwidth in bits/s. τ is the number of inner steps between launch and landing, during which a transfer costs no
time (0 for most schedules). The model ignores latency and assumes that downlinks are at least as fast as uplinks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from outerloop.report.metric_rows import sent_payload_bytes

Row = dict[str, Any]

MODEL = (
    "Simulated time of the slowest worker: its measured time per inner step (without waits, evaluations and saves)"
    " times its steps, plus, for every round, payload bytes × copies / bandwidth, minus the time of the inner steps"
    " that the schedule runs between launch and landing."
)


@dataclass(frozen=True)
class WorkerStepRate:
    """The speed and traffic of one worker.

    step_s: seconds of computation per inner step.
    landed_steps: the inner step after which each round landed.
    sent_bytes: payload bytes that the worker sent for each round, counting every copy.
    delay_steps: inner steps between launch and landing.
    """

    step_s: float
    landed_steps: list[int]
    sent_bytes: list[float]
    delay_steps: float

    def bytes_at(self, steps: Sequence[int]) -> list[float]:
        """Return the total number of bytes sent up to each of these inner steps."""
        return totals_at(steps, self.landed_steps, self.sent_bytes)

    def seconds_at(self, steps: Sequence[int], bits_per_s: float) -> list[float]:
        """Return the simulated time, in seconds, at each of these inner steps."""
        hidden_s = self.delay_steps * self.step_s
        stalls_s = [max(0.0, 8 * sent / bits_per_s - hidden_s) for sent in self.sent_bytes]
        stalled_s = totals_at(steps, self.landed_steps, stalls_s)
        return [step * self.step_s + stall for step, stall in zip(steps, stalled_s, strict=True)]


def totals_at(steps: Sequence[int], landed_steps: list[int], amounts: Iterable[float]) -> list[float]:
    """Return, for each of `steps`, the sum of the amounts landed up to that step. `landed_steps` must be ascending."""
    totals = [0.0, *accumulate(amounts)]
    return [totals[bisect_right(landed_steps, step)] for step in steps]


def worker_step_rates(rows: list[Row], *, delay_steps: float) -> list[WorkerStepRate]:
    """Return one `WorkerStepRate` for each worker that landed a round, ordered by worker."""
    workers = sorted({row["worker"] for row in rows if row["event"] == "round"})
    return [step_rate([row for row in rows if row.get("worker") == w], delay_steps=delay_steps) for w in workers]


def step_rate(rows: list[Row], *, delay_steps: float) -> WorkerStepRate:
    """Return the `WorkerStepRate` of one worker, computed from its own rows."""
    rounds = [row for row in rows if row["event"] == "round"]
    payload_bytes = sum(row["payload_bytes"] for row in rounds)
    copies = max(map(sent_payload_bytes, rounds)) / max(1, payload_bytes)
    sent_bytes = [row["payload_bytes"] * copies for row in rounds]
    return WorkerStepRate(step_seconds(rows), [row["step"] for row in rounds], sent_bytes, delay_steps)


def step_seconds(rows: list[Row]) -> float:
    """Return one worker's seconds per inner step: the wall time between its rows, minus its waits.

    Only the time before a step or round row counts; evaluations, saves and the time between sessions do not. Status
    rows are ignored, because they may occur at any time. A row from outside the training loop may have step 0, so steps
    count from the highest step of any earlier row.
    """
    steps, seconds, reached = 0, 0.0, 0
    for before, row in pairwise(row for row in rows if row["event"] != "status"):
        reached = max(reached, before["step"])
        if row["event"] in ("step", "round"):
            steps += max(0, row["step"] - reached)
            seconds += row["wall_s"] - before["wall_s"] - row.get("wait_s", 0.0)
    return max(0.0, seconds) / max(1, steps)
