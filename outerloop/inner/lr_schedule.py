"""Learning-rate factors by step, for the inner and for the outer optimizer."""

from __future__ import annotations

from outerloop.kernels.portable import cosine


def warmup_cosine(step: int, *, warmup_steps: int, total_steps: int, floor: float) -> float:
    """Factor of the peak learning rate at `step` (counted from 0).

    Rises linearly over `warmup_steps`, then half a cosine down to `floor` at `total_steps`, and stays there.
    The same bits on every machine.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    done = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return floor + (1 - floor) * 0.5 * (1 + cosine(done))
