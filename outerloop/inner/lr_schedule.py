"""Compute the learning-rate factor of a step, for the inner and the outer optimizer.

Every schedule raises the factor linearly to 1 over `warmup_steps`, lowers it to `floor` by `total_steps`, and keeps it
there. Steps are counted from 0. Results are bit-identical on all machines.
"""

from __future__ import annotations

from outerloop.kernels.portable import cosine

COOLDOWN = 0.2
"""Share of the steps after the warm-up, at their end, in which `warmup_wsd` lowers the factor (arXiv 2405.18392)."""


def warmup_cosine(step: int, *, warmup_steps: int, total_steps: int, floor: float) -> float:
    """Return the factor of `step`. After the warm-up, it follows half a cosine.

    floor + (1 − floor) (1 + cos(π d)) / 2, where d = `completed(step, warmup_steps, total_steps)`
    """
    return scheduled(step, warmup_steps, floor, 0.5 * (1 + cosine(completed(step, warmup_steps, total_steps))))


def warmup_linear(step: int, *, warmup_steps: int, total_steps: int, floor: float) -> float:
    """Return the factor of `step`. After the warm-up, it decreases linearly.

    floor + (1 − floor) (1 − d), where d = `completed(step, warmup_steps, total_steps)`
    """
    return scheduled(step, warmup_steps, floor, 1 - completed(step, warmup_steps, total_steps))


def warmup_wsd(step: int, *, warmup_steps: int, total_steps: int, floor: float) -> float:
    """Return the factor of `step`. After the warm-up, it is 1, then decreases linearly (WSD, arXiv 2404.06395).

    floor + (1 − floor) min(1, (1 − d) / 0.2), where d = `completed(step, warmup_steps, total_steps)`
    """
    left = 1 - completed(step, warmup_steps, total_steps)
    return scheduled(step, warmup_steps, floor, min(1.0, left / COOLDOWN))


SCHEDULES = {"cosine": warmup_cosine, "linear": warmup_linear, "wsd": warmup_wsd}
"""Value of inner.lr_schedule -> its function."""


def completed(step: int, warmup_steps: int, total_steps: int) -> float:
    """Return how much of the steps after the warm-up has been completed, from 0 to 1."""
    return max(0.0, min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps)))


def scheduled(step: int, warmup_steps: int, floor: float, decay: float) -> float:
    """Return the factor: (step + 1) / warmup_steps during the warm-up, floor + (1 − floor) · decay afterwards."""
    return (step + 1) / warmup_steps if step < warmup_steps else floor + (1 - floor) * decay
