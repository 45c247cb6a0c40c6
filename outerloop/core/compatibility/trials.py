"""Find properties of codecs, feedbacks and methods by trying them on a small Gaussian tensor.

A codec often consists of other codecs, so its properties are not declared but found by trials. No function changes the
part that it tries.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor

from outerloop.protocols import Compressor, Feedback, OuterMethod
from outerloop.types import CodecContext


def lossiness(compress: Compressor) -> float:
    """Return the relative L2 error on 8192 Gaussian values, in a round after the warm-up if there is one."""
    x, context = probe()
    return float((x - compress.decode(compress.encode(x, context), x.shape, context)).norm() / x.norm())


def sparse(compress: Compressor) -> bool:
    """Return whether most values become zero when they are encoded and decoded."""
    x, context = probe()
    return float((compress.decode(compress.encode(x, context), x.shape, context) == 0).float().mean()) > 0.5


def aligned(compress: Compressor) -> bool:
    """Return whether all peers send the same coordinates, or each sends all, so that a 0 never means "not sent"."""
    return compress.linear or not sparse(compress)


def announces(compress: Compressor) -> bool:
    """Return whether a leader sends a "next" part for the next round."""
    x, context = probe()
    return "next" in compress.encode(x, replace(context, leads=True))


def redraws(compress: Compressor) -> bool:
    """Return whether the decoded values depend on the random seed of the round."""
    x, context = probe()
    first, other = (
        compress.decode(compress.encode(x, at), x.shape, at)
        for at in (context, replace(context, seed=context.seed + 1))
    )
    return not torch.equal(first, other)


def recalled(feedback: Feedback) -> float:
    """Return the fraction of the unsent values that reaches the next round, by the feedback or in the fast weights."""
    x, trial = probe()[0], copy.deepcopy(feedback)
    trial.keep("trial", x, torch.zeros_like(x))
    fast = trial.begin("trial", torch.zeros_like(x))
    return float(trial.add("trial", -fast).norm() / x.norm())


def in_fast_weights(feedback: Feedback) -> bool:
    """Return whether inner steps start from values other than the slow weights if some values were not sent."""
    x, trial = probe()[0], copy.deepcopy(feedback)
    trial.keep("trial", x, torch.zeros_like(x))
    return bool(trial.begin("trial", torch.zeros_like(x)).any())


def adds_up(method: OuterMethod) -> bool:
    """Return whether the steps for two means add up to the step for their sum, up to rounding, even for large means."""
    x = 1e6 * probe()[0]
    step, other, both = moved(method, x), moved(method, x.flip(0)), moved(method, x + x.flip(0))
    return torch.allclose(step + other, both, rtol=1e-4, atol=float(1e-4 * both.norm() / both.numel() ** 0.5))


def moved(method: OuterMethod, mean: Tensor) -> Tensor:
    """Return slow weights after one update with this mean, starting from zeros. Does not change the method."""
    trial, slow = copy.deepcopy(method), {"trial": torch.zeros_like(mean)}
    trial.init(slow)
    trial.update(slow, {"trial": mean}, {})
    return slow["trial"]


def probe() -> tuple[Tensor, CodecContext]:
    """Return a matrix of Gaussian values, and the context of a round late in a run."""
    return torch.randn(64, 128, generator=torch.Generator().manual_seed(0)), CodecContext(round=10**9, seed=0)
