"""Compute how much of an exchange overlaps with inner steps, and the bandwidth that a utilization requires.

exposed = max(0, exchange − hidden);      utilization u = compute / (compute + exposed)
bandwidth for u = bits / (hidden + compute (1 / u − 1))
"""

from __future__ import annotations


def exposed_s(exchange_s: float, hidden_s: float) -> float:
    """Return the seconds that the inner loop waits for an exchange overlapped by `hidden_s` of inner steps."""
    return max(0.0, exchange_s - hidden_s)


def utilization(compute_s: float, exposed_s: float) -> float:
    """Return the share of the time spent in inner steps, 0 .. 1."""
    return compute_s / (compute_s + exposed_s)


def bandwidth_for(share: float, *, bits: float, compute_s: float, hidden_s: float) -> float:
    """Return the bits/s for a utilization of `share`, with one exchange of `bits` per `compute_s` of inner steps."""
    return bits / (hidden_s + compute_s * (1 / share - 1))
