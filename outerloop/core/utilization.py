"""Define the categories of a worker's time, and compute the share that is spent in inner steps.

    utilization = compute / (compute + communication + others)

This file imports no torch, so that programs that only read records start quickly.
"""

from __future__ import annotations

SPENT = "compute_s", "communication_s", "others_s"
"""The categories of a worker's time: computing, communicating, and waiting for other peers."""


def utilization(*, compute_s: float, communication_s: float, others_s: float) -> float:
    """Return compute / (compute + communication + waiting for other peers), or 1 if all three are 0."""
    total_s = compute_s + communication_s + others_s
    return compute_s / total_s if total_s else 1.0
