"""Keep all values above a fitted threshold, without sorting (SIDCo, arXiv 2101.10761).

    |x| is modelled as exponential: P(|x| > η) = exp(−η / mean |x|), so η = mean |x| · ln(1 / share)
    in stages: the |x| above η_s are exponential too, η_{s+1} = η_s + (their mean − η_s) ln(1 / share_s), share_s ≥ 1/4

If the number of values above the fitted threshold is off target by more than a factor of 1.2, the threshold is
corrected by bisection. This is needed because error feedback makes magnitudes more equal, so that they are no longer
exponential. SIDCo instead adapts the number of stages over the iterations, which requires state. At most 1.2 times a
tensor's share is sent. If too many magnitudes are equal, the values that come first in memory are sent.

A tensor has a single threshold, so, unlike with `topk`, chunks of large values send more values than chunks of small
values. The number of kept values varies, so the gaps between their positions are sent, about one byte each at a share
of 1/32. Needs error feedback.

Sizes: N values, M kept values, S values left in a stage.
"""

from __future__ import annotations

import math

import torch
from torch import Size, Tensor

from outerloop.compress import nested_parts, with_prefix
from outerloop.kernels.reference import pack_gaps, unpack_gaps
from outerloop.protocols import Compressor
from outerloop.types import CodecContext, Parts, UserError

STAGE_SHARE = 0.25
TOLERANCE = 1.2
MAX_STAGES, MAX_CORRECTIONS = 20, 20


class Threshold:
    """Compressor that keeps approximately the fraction `share` of a tensor, the values of largest magnitude.

    Args:
        share: fraction of the values to send, above 0 and at most 1.
        values: compressor of the kept values. It receives them in order, without groups, so its `chunk` must be set.

    Raises:
        UserError: if `share` is out of range.
    """

    linear = False

    def __init__(self, *, share: float, values: Compressor) -> None:
        if not 0 < share <= 1:
            raise UserError(f"threshold share={share} must be above 0 and at most 1 (0.03125 is 128 of 4096)")
        self.share, self.values = share, values

    def max_kept(self, count: int) -> int:
        """Return the maximum number of values that are sent for a tensor of `count` values."""
        return min(count, math.floor(TOLERANCE * math.ceil(self.share * count)))

    def encode(self, x: Tensor, context: CodecContext) -> Parts:
        """Encode x (any shape) to "values.*" (the encoded kept values) and "gap" (uint8, the gaps between them)."""
        x_N = x.detach().reshape(-1)
        threshold = fitted(x_N.abs(), math.ceil(self.share * x_N.numel()))
        position_M = ((x_N.abs() >= threshold) & (x_N != 0)).nonzero()[: self.max_kept(x_N.numel()), 0]
        nested = self.values.encode(x_N[position_M], context)
        return {"gap": pack_gaps(position_M, x_N.numel())} | with_prefix(nested)

    def decode(self, parts: Parts, shape: Size, context: CodecContext) -> Tensor:
        """Decode parts to a dense float32 tensor of `shape`. Raises ValueError if `parts` do not fit the tensor."""
        count, nested = shape.numel(), nested_parts("gap", parts)
        position_M = unpack_gaps(parts["gap"], count, self.max_kept(count))
        dense_N = torch.zeros(count, dtype=torch.float32, device=position_M.device)
        dense_N[position_M] = self.values.decode(nested, position_M.shape, context).float()
        return dense_N.view(shape)


def fitted(size_N: Tensor, wanted: int) -> float:
    """Return a threshold that about `wanted` magnitudes reach. At least one magnitude reaches it.

    The exponential fit is corrected by bisection. If many magnitudes are equal, the count may differ from `wanted`.
    """
    if not size_N.numel():
        return 0.0
    low, high = 0.0, float(size_N.max())
    guess = min(high, exponential(size_N, wanted))
    for _ in range(MAX_CORRECTIONS):
        count = int((size_N >= guess).sum())
        if wanted <= TOLERANCE * count and count <= TOLERANCE * wanted:
            return guess
        low, high = (guess, high) if count > wanted else (low, guess)
        guess = (low + high) / 2
    return high


def exponential(size_N: Tensor, wanted: int) -> float:
    """Fit an exponential to the magnitudes in stages, each of which aims to keep at least 1/4. Return the threshold."""
    threshold, size_S = 0.0, size_N
    for _ in range(MAX_STAGES):
        if size_S.numel() <= wanted:
            break
        share = max(wanted / size_S.numel(), STAGE_SHARE)
        threshold += (float(size_S.mean(dtype=torch.float64)) - threshold) * math.log(1 / share)
        if share > STAGE_SHARE:
            break
        size_S = size_S[size_S >= threshold]
    return threshold
