"""The landing pass: average all payloads and update all state in one sweep.

The state is residual, momentum, slow and fast weights.

    ḡ = Σ_p v_p / P, or divided by the number of peers whose value of the coordinate is not 0 ("senders")
    e ← (slow − fast) + e · β − own v                                           error feedback; own v as sent
    b ← b · μ + ḡ;   slow ← slow − (ḡ + b · μ) · η   (nesterov), − b · η        torch's SGD; without momentum − ḡ · η
    fast ← slow

The residual e is float32, or int8 with scales, read and written as defined in `eight_bit`.
Every product and every sum is rounded to float32 separately, in this order and over peers in name order, so that all
machines get the same bits. The function in this file is the definition, in plain torch.
N values, P peers, M kept in all.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from outerloop.kernels.eight_bit import read_residual, write_residual
from outerloop.kernels.operator import operator
from outerloop.kernels.portable import divide
from outerloop.kernels.select import Rows, absolute, offer


class Landing(NamedTuple):
    """Scalar parameters of the equations above.

    own: the row of this peer among the payloads, or -1 to leave the residual unchanged.
    beta: decay of the residual.
    chunk, k: `k` kept of every `chunk` values, as `Rows`.
    by_senders: divide by the number of peers whose value is not 0 instead of by all; 0 counts as not sent.
    lr, mu, nesterov: η, μ and the variant of torch's SGD.
    """

    own: int
    beta: float
    chunk: int
    k: int
    by_senders: bool
    lr: float
    mu: float
    nesterov: bool


@operator(mutates=("slow", "fast", "residual", "scale", "momentum"))
def land(
    slow: Tensor,
    fast: Tensor,
    residual: Tensor | None,
    scale: Tensor | None,
    momentum: Tensor | None,
    position: Tensor,
    value: Tensor,
    sent: Tensor | None,
    how: Landing,
) -> Tensor:
    """Land one tensor in place. Return (1,) float64, the sum of ḡ².

    slow, residual, momentum: N float32, contiguous; fast: N float32 or bfloat16. With `scale` the residual is
    codes: (B, 256) int8 and (B, 1) float32. position (P, M) int32 and value (P, M) float32 as returned by `select`.
    sent: M float32, the values that this peer sent, if row `own` of value was changed since; else None.
    """
    rows = Rows(slow.numel(), how.chunk, how.k)
    at_PM = torch.stack([absolute(position_M, rows) for position_M in position])
    sum_N, senders_N = torch.zeros_like(slow).view(-1), torch.zeros_like(slow).view(-1)
    for at_M, value_M in zip(at_PM, value, strict=True):
        sum_N[at_M] += value_M
        senders_N[at_M] += (value_M != 0).float()
    mean = (sum_N / senders_N.clamp(min=1.0) if how.by_senders else divide(sum_N, len(value))).view_as(slow)
    if residual is not None and how.own >= 0:
        x = offer(slow, fast, read_residual(residual, scale, slow.shape), how.beta)
        x.view(-1)[at_PM[how.own]] -= value[how.own] if sent is None else sent
        write_residual(x, residual, scale)
    step = mean
    if momentum is not None:
        momentum.copy_(momentum * how.mu + mean)
        step = mean + momentum * how.mu if how.nesterov else momentum
    slow.copy_(slow - step * how.lr)
    fast.copy_(slow)
    return mean.double().square().sum().view(1)


@land.fake
def _(slow: Tensor, *rest: object) -> Tensor:
    return slow.new_empty(1, dtype=torch.float64)
