"""The landing pass: average all payloads and update all state in one sweep.

The state consists of the residual e, the momentum b, the slow weights and the fast weights. v_p are the decoded values
of peer p, β the decay of the residual, μ the momentum factor, and η the learning rate.

    ḡ = Σ_p v_p / P, or Σ_p v_p / S, where S is the number of peers that sent a nonzero value for the coordinate
    e ← (slow − fast) + e · β − v         error feedback; v: the values that this peer sent
    b ← b · μ + ḡ;   slow ← slow − s · η  torch's SGD; s = ḡ + b · μ (Nesterov), s = b, or s = ḡ (without momentum)
    fast ← slow

If signs are given, the values v_p are rotated (rotation.py): ḡ and this peer's v are rotated back, then used as above.
The residual e is float32, or int8 with scales, read and written as defined in `eight_bit`.
Every product and every sum is rounded to float32 separately, in the order of these equations, and the payloads are
added in order of peer name, so that all machines get the same bits. `land` in this file is the reference
implementation, in plain torch.
Sizes: N values, P peers, M kept values in total.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from outerloop.kernels.eight_bit import read_residual, write_residual
from outerloop.kernels.operator import operator
from outerloop.kernels.portable import divide
from outerloop.kernels.rotation import rotate
from outerloop.kernels.select import Rows, absolute, offer


class Landing(NamedTuple):
    """Scalar parameters of the operator `land`.

    own: index of this peer's payload, or -1 to leave the residual unchanged.
    beta: decay of the residual.
    chunk, k: `k` of every `chunk` values are kept; see `Rows`.
    by_senders: divide a sum by the number of peers that sent a nonzero value for the coordinate, not by the number
        of all peers.
    lr, mu: learning rate and momentum of torch's SGD.
    nesterov: whether to use Nesterov momentum.
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
    negative: Tensor | None,
    how: Landing,
) -> Tensor:
    """Apply one round to one tensor in place. Return Σ ḡ², (1,) float64, where ḡ is the mean of all peers' payloads.

    slow, residual, momentum: N float32 values, contiguous.
    fast: N float32 or bfloat16 values.
    scale: None, or (B, 1) float32 scales for B blocks; the residual then consists of (B, 256) int8 codes.
    position: (P, M) int32, the M kept positions of each of P peers, relative to their chunks.
    value: (P, M) float32, each peer's decoded values at these positions.
    sent: (M,) float32, the values that this peer sent, if value[own] was changed after sending; else None.
    negative: sign bits of the rotation that was applied to the values (rotation.py), or None without rotation.
    """
    rows = Rows(slow.numel(), how.chunk, how.k)
    at_PM = torch.stack([absolute(position_M, rows) for position_M in position])
    sum_N, senders_N = torch.zeros_like(slow).view(-1), torch.zeros_like(slow).view(-1)
    for at_M, value_M in zip(at_PM, value, strict=True):
        sum_N[at_M] += value_M
        senders_N[at_M] += (value_M != 0).float()
    mean_N = sum_N / senders_N.clamp(min=1.0) if how.by_senders else divide(sum_N, len(value))
    mean = (mean_N if negative is None else rotate(mean_N, negative, how.chunk, True)).view_as(slow)
    if residual is not None and how.own >= 0:
        x = offer(slow, fast, read_residual(residual, scale, slow.shape), how.beta)
        own_M = value[how.own] if sent is None else sent
        if negative is None:
            x.view(-1)[at_PM[how.own]] -= own_M
        else:
            own_N = torch.zeros_like(x).view(-1).index_put((at_PM[how.own],), own_M)
            x -= rotate(own_N, negative, how.chunk, True).view_as(x)
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
