"""Determine properties of codecs, feedbacks and methods by running them on a small Gaussian tensor.

A codec is often composed of other codecs, so its properties are not declared but determined by trials. If tensor size
chooses between codecs, each of them is tried. No trial changes the part under test.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor

from outerloop.compress.by_size import codecs
from outerloop.protocols import Compressor, Feedback, OuterMethod
from outerloop.types import CodecContext


def lossiness(compress: Compressor) -> float:
    """Return the largest relative L2 error of the codecs on 8192 Gaussian values, in a round after any warm-up."""
    x, context = probe()
    tried = (codec.decode(codec.encode(x, context), x.shape, context) for codec in codecs(compress))
    return max(float((x - decoded).norm() / x.norm()) for decoded in tried)


def sparse(compress: Compressor) -> bool:
    """Return whether encoding and decoding with one of the codecs sets most values to zero."""
    return any(map(zeroes, codecs(compress)))


def aligned(compress: Compressor) -> bool:
    """Return whether all peers send the same coordinates, or each peer sends all, so that 0 never means "not sent"."""
    return all(codec.linear or not zeroes(codec) for codec in codecs(compress))


def announces(compress: Compressor) -> bool:
    """Return whether the peer that leads a round sends a "next" part, which all peers use in the next round."""
    x, context = probe()
    return any("next" in codec.encode(x, replace(context, leads=True)) for codec in codecs(compress))


def redraws(compress: Compressor) -> bool:
    """Return whether the decoded values of one of the codecs depend on the round's random seed."""
    x, context = probe()
    other = replace(context, seed=context.seed + 1)
    return any(
        not torch.equal(*(codec.decode(codec.encode(x, at), x.shape, at) for at in (context, other)))
        for codec in codecs(compress)
    )


def zeroes(codec: Compressor) -> bool:
    """Return whether encoding and decoding sets most values to zero."""
    x, context = probe()
    return float((codec.decode(codec.encode(x, context), x.shape, context) == 0).float().mean()) > 0.5


def recalled(feedback: Feedback) -> float:
    """Return the fraction of unsent values that reaches the next round, through the residual or the fast weights."""
    x, trial = probe()[0], copy.deepcopy(feedback)
    trial.keep("trial", x, torch.zeros_like(x))
    fast = trial.begin("trial", torch.zeros_like(x))
    return float(trial.add("trial", -fast).norm() / x.norm())


def in_fast_weights(feedback: Feedback) -> bool:
    """Return whether the feedback keeps unsent values in the fast weights, which then differ from the slow weights."""
    x, trial = probe()[0], copy.deepcopy(feedback)
    trial.keep("trial", x, torch.zeros_like(x))
    return bool(trial.begin("trial", torch.zeros_like(x)).any())


def adds_up(method: OuterMethod) -> bool:
    """Return whether outer steps are additive: step(a) + step(b) = step(a + b) up to rounding, even for large a, b."""
    x = 1e6 * probe()[0]
    step, other, both = moved(method, x), moved(method, x.flip(0)), moved(method, x + x.flip(0))
    return torch.allclose(step + other, both, rtol=1e-4, atol=float(1e-4 * both.norm() / both.numel() ** 0.5))


def steady(method: OuterMethod) -> bool:
    """Return whether an outer step is the same in the first two rounds, given the same mean and no earlier progress."""
    x = probe()[0]
    return torch.equal(moved(method, torch.zeros_like(x), x), moved(method, x))


def decays(method: OuterMethod) -> bool:
    """Return whether an outer step with a zero mean changes slow weights that are not zero."""
    x = probe()[0]
    return not torch.equal(moved(method, torch.zeros_like(x), start=x), x)


def moved(method: OuterMethod, *means: Tensor, start: Tensor | None = None) -> Tensor:
    """Return the slow weights after one update by each mean. Updates only a copy of the method.

    start: the slow weights before the first update; None for zeros.
    """
    trial, slow = copy.deepcopy(method), {"trial": torch.zeros_like(means[0]) if start is None else start.clone()}
    trial.init(slow)
    for mean in means:
        trial.update(slow, {"trial": mean}, {})
    return slow["trial"]


def probe() -> tuple[Tensor, CodecContext]:
    """Return a 64 x 128 matrix of Gaussian values, and the codec context of a round late in a run."""
    draw = torch.Generator().manual_seed(0)
    return torch.randn(64, 128, generator=draw, dtype=torch.float32), CodecContext(round=10**9, seed=0)
