"""Compute a worker's totals over its run, and how it spent the time between two rounds.

    utilization = compute / (compute + communication + others)

"others" is the time spent waiting for other peers. Communication is all other time that the outer loop takes between
two inner steps: launching, waiting for bytes in transit, and landing. Communication that overlaps with inner steps is
not counted. Evaluations and checkpoints are in none of the three categories.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from outerloop.core.round import RoundReport
from outerloop.core.utilization import SPENT
from outerloop.exchange_protocols import counters, metered
from outerloop.inner.trainer import StepReport
from outerloop.protocols import Exchange
from outerloop.replica.rank_group import RankGroup


@dataclass
class StepTimeBudget:
    """Sums the times of all inner steps since the last round landed or failed, in seconds."""

    compute_s: float = 0.0
    outer_s: float = 0.0

    def add(self, step: StepReport) -> None:
        """Add the computing time and the outer loop's time of one inner step."""
        self.compute_s += step.compute_s
        self.outer_s += step.outer_s

    def split(self, report: RoundReport) -> dict[str, float]:
        """Return the seconds spent in each category since the previous round, and reset the sums."""
        others_s = min(self.outer_s, report.peer_wait_s)
        spent = {
            "compute_s": self.compute_s,
            "communication_s": self.outer_s - others_s,
            "others_s": others_s,
        }
        self.compute_s = self.outer_s = 0.0
        return spent


class RunTotals:
    """Keeps one worker's totals since the run began, including the time before it was resumed.

    Args:
        exchange: counts the bytes since this process started.
        lanes: the ranks of an island whose bytes are summed.
    """

    def __init__(self, exchange: Exchange, lanes: RankGroup) -> None:
        self.exchange, self.traffic, self.lanes = exchange, metered(exchange), lanes
        self.step_time = StepTimeBudget()
        self.earlier = {"bytes_sent": 0, "bytes_received": 0, "payload_bytes": 0, "wait_s": 0.0, "rounds_failed": 0}
        self.earlier |= dict.fromkeys(SPENT, 0.0)
        self.totals = dict(self.earlier)

    def add_round(self, report: RoundReport) -> dict[str, float]:
        """Add a round that landed or failed. Return category -> seconds spent since the previous round."""
        spent = self.step_time.split(report)
        self.totals["payload_bytes"] += report.payload_bytes
        self.totals["rounds_failed"] += bool(report.failed)
        for name, seconds in (spent | {"wait_s": report.wait_s}).items():
            self.totals[name] += seconds
        return spent

    def counters(self) -> dict[str, Any]:
        """Return all totals, with bytes summed over all lanes. This is a collective: every lane must call it."""
        sent, received = self.lanes.all_reduce([self.traffic.bytes_sent, self.traffic.bytes_received])
        counted = {"bytes_sent": int(sent), "bytes_received": int(received), **counters(self.exchange)}
        return self.totals | {name: self.earlier.get(name, 0) + count for name, count in counted.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the counters and the times since the last round. This is a collective: every lane must call it."""
        return {"counters": self.counters(), "step_time": asdict(self.step_time)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned. States of earlier versions contain only the counters."""
        self.earlier |= state["counters"]
        self.totals = dict(self.earlier)
        self.step_time = StepTimeBudget(**state.get("step_time", {}))


def sum_over_lanes(report: RoundReport, ranks: RankGroup) -> RoundReport:
    """Return a round's report with payload bytes and norms combined over all lanes (ranks) of an island."""
    payload_bytes, delta, mean = ranks.all_reduce([report.payload_bytes, report.delta_norm**2, report.mean_norm**2])
    return replace(report, payload_bytes=int(payload_bytes), delta_norm=math.sqrt(delta), mean_norm=math.sqrt(mean))
