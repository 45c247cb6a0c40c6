"""Compute the learning-rate factor of a step, for the inner and the outer optimizer.

All functions increase the factor linearly over `warmup_steps`, decrease it from 1 to `floor` at `total_steps`, and stay
at `floor`. Steps are counted from 0. Results are bit-identical on all machines. d = 0 .. 1 is the completed fraction of
the steps after the warm-up.
"""

from __future__ import annotations

from outerloop.kernels.portable import cosine

COOLDOWN = 0.2
"""Fraction of the steps after the warm-up in which `warmup_wsd` decreases the factor (arXiv 2405.18392)."""


def warmup_cosine(step: int, *, warmup_steps: int, total_steps: int, floor: float) -> float:
    """Return a factor that decreases along half a cosine: floor + (1 − floor) (1 + cos(π d)) / 2."""
    return scheduled(step, warmup_steps, floor, 0.5 * (1 + cosine(completed(step, warmup_steps, total_steps))))


def warmup_linear(step: int, *, warmup_steps: int, total_steps: int, floor: float) -> float:
    """Return a factor that decreases linearly: floor + (1 − floor) (1 − d)."""
    return scheduled(step, warmup_steps, floor, 1 - completed(step, warmup_steps, total_steps))


def warmup_wsd(step: int, *, warmup_steps: int, total_steps: int, floor: float) -> float:
    """Return a factor that is constant, then decreases linearly (warmup-stable-decay, arXiv 2404.06395).

    floor + (1 − floor) min(1, (1 − d) / 0.2)
    """
    left = 1 - completed(step, warmup_steps, total_steps)
    return scheduled(step, warmup_steps, floor, min(1.0, left / COOLDOWN))


SCHEDULES = {"cosine": warmup_cosine, "linear": warmup_linear, "wsd": warmup_wsd}
"""Choice of inner.lr_schedule -> its function."""


def completed(step: int, warmup_steps: int, total_steps: int) -> float:
    """Return the completed fraction d of the steps after the warm-up, 0 .. 1."""
    return max(0.0, min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps)))


def scheduled(step: int, warmup_steps: int, floor: float, decay: float) -> float:
    """Return the factor of the warm-up, or the factor that is `decay` of the way from `floor` to 1 after it."""
    return (step + 1) / warmup_steps if step < warmup_steps else floor + (1 - floor) * decay
