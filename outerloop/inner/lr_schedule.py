"""Compute the learning-rate factor of a step, for the inner and the outer optimizer."""

from __future__ import annotations

from outerloop.kernels.portable import cosine


def warmup_cosine(step: int, *, warmup_steps: int, total_steps: int, floor: float) -> float:
    """Return the factor by which the peak learning rate is multiplied at `step` (counted from 0).

    It increases linearly over `warmup_steps`, then decreases along half a cosine to `floor` at `total_steps`, and stays
    at `floor`. The result is bit-identical on all machines.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    done = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return floor + (1 - floor) * 0.5 * (1 + cosine(done))
