"""How much of an exchange hides behind inner steps, and what bandwidth a utilization asks for.

exposed = max(0, exchange − hidden);      utilization u = compute / (compute + exposed)
bandwidth for u = bits / (hidden + compute (1 / u − 1))
"""

from __future__ import annotations


def exposed_s(exchange_s: float, hidden_s: float) -> float:
    """What the inner loop waits for an exchange that `hidden_s` of inner steps run beside."""
    return max(0.0, exchange_s - hidden_s)


def utilization(compute_s: float, exposed_s: float) -> float:
    """Share of the time that inner steps take, 0 .. 1."""
    return compute_s / (compute_s + exposed_s)


def bandwidth_for(share: float, *, bits: float, compute_s: float, hidden_s: float) -> float:
    """Bits/s at which an exchange of so many bits every `compute_s` seconds of inner steps leaves this utilization."""
    return bits / (hidden_s + compute_s * (1 / share - 1))
