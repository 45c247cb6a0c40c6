"""Find properties of codecs, feedbacks and methods by trying them on a small gaussian tensor.

A codec is often made of others, so what it does is tried, not declared. No function changes the part.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor

from outerloop.compress.by_size import codec_of
from outerloop.protocols import Compressor, Feedback, OuterMethod, Transforming
from outerloop.types import CodecContext


def lossiness(compress: Compressor) -> float:
    """Return the relative L2 error on 8192 gaussian values, after any warm-up."""
    x, context = probe()
    return float((x - compress.decode(compress.encode(x, context), x.shape, context)).norm() / x.norm())


def sparse(compress: Compressor) -> bool:
    """Return whether most values are decoded as zero."""
    x, context = probe()
    return float((compress.decode(compress.encode(x, context), x.shape, context) == 0).float().mean()) > 0.5


def aligned(compress: Compressor) -> bool:
    """Return whether all peers send the same coordinates of what is aggregated, so that no 0 means "not sent"."""
    x, context = probe()
    codec = codec_of(compress, x.shape)
    decode = codec.coefficients if isinstance(codec, Transforming) else codec.decode
    return compress.linear or float((decode(codec.encode(x, context), x.shape, context) == 0).float().mean()) <= 0.5


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
    """Return the fraction of entirely unsent values that is offered again, by the feedback or via the fast weights."""
    x, trial = probe()[0], copy.deepcopy(feedback)
    trial.keep("trial", x, torch.zeros_like(x))
    fast = trial.begin("trial", torch.zeros_like(x))
    return float(trial.add("trial", -fast).norm() / x.norm())


def in_fast_weights(feedback: Feedback) -> bool:
    """Return whether inner steps start from values other than the slow weights after something was not sent."""
    x, trial = probe()[0], copy.deepcopy(feedback)
    trial.keep("trial", x, torch.zeros_like(x))
    return bool(trial.begin("trial", torch.zeros_like(x)).any())


def adds_up(method: OuterMethod) -> bool:
    """Return whether the step of a sum of two means is the sum of their steps, up to rounding, at any length."""
    x = 1e6 * probe()[0]
    step, other, both = moved(method, x), moved(method, x.flip(0)), moved(method, x + x.flip(0))
    return torch.allclose(step + other, both, rtol=1e-4, atol=float(1e-4 * both.norm() / both.numel() ** 0.5))


def moved(method: OuterMethod, mean: Tensor) -> Tensor:
    """Return slow weights that were zero, after one update with this mean. Does not change the method."""
    trial, slow = copy.deepcopy(method), {"trial": torch.zeros_like(mean)}
    trial.init(slow)
    trial.update(slow, {"trial": mean}, {})
    return slow["trial"]


def probe() -> tuple[Tensor, CodecContext]:
    """Return gaussian values as a matrix, and the context of a round late in a run."""
    return torch.randn(64, 128, generator=torch.Generator().manual_seed(0)), CodecContext(round=10**9, seed=0)
