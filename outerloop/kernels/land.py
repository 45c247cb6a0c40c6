"""The landing pass: average all payloads and update all state in one sweep.

The state consists of the residual e, the momentum b, the slow weights and the fast weights. v_p are the decoded values
of peer p, β the decay of the residual, μ the momentum factor, η the learning rate, and κ the share of the unsent values
that stays in the fast weights (feedback=local; otherwise 0).

    ḡ = Σ_p v_p / P, or Σ_p v_p / S, where S is the number of peers that sent a nonzero value for the coordinate
    e ← (slow − fast) + e · β − v         error feedback; v: the values that this peer sent
    b ← b · μ + ḡ;   slow ← slow − s · η  torch's SGD; s = ḡ + b · μ (Nesterov), s = b, or s = ḡ (without momentum)
    fast ← e · (−κ) + slow                (slow itself if κ is 0; e is only stored if a residual is given)

If inner steps continued after the launch, `fast` are the weights at the launch, and the current weights θ keep the
progress since then:  θ ← (θ − fast) + (e · (−κ) + slow);  `fast` does then not change.

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
    unsent_share: κ, 0 .. 1. It must be 0 if `own` is -1 or a residual is given.
    """

    own: int
    beta: float
    chunk: int
    k: int
    by_senders: bool
    lr: float
    mu: float
    nesterov: bool
    unsent_share: float = 0.0


@operator(mutates=("slow", "fast", "residual", "scale", "momentum", "current"))
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
    current: Tensor | None,
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
    current: the fast weights θ, of the dtype of `fast`, if inner steps continued after the launch; else None.
    """
    if current is not None:
        current.sub_(fast)
    rows = Rows(slow.numel(), how.chunk, how.k)
    at_PM = torch.stack([absolute(position_M, rows) for position_M in position])
    sum_N, senders_N = torch.zeros_like(slow).view(-1), torch.zeros_like(slow).view(-1)
    for at_M, value_M in zip(at_PM, value, strict=True):
        sum_N[at_M] += value_M
        senders_N[at_M] += (value_M != 0).float()
    mean_N = sum_N / senders_N.clamp(min=1.0) if how.by_senders else divide(sum_N, len(value))
    mean = (mean_N if negative is None else rotate(mean_N, negative, how.chunk, True)).view_as(slow)
    x = None
    if how.own >= 0 and (residual is not None or how.unsent_share):
        held = None if residual is None else read_residual(residual, scale, slow.shape)
        x = offer(slow, fast, held, how.beta)
        own_M = value[how.own] if sent is None else sent
        if negative is None:
            x.view(-1)[at_PM[how.own]] -= own_M
        else:
            own_N = torch.zeros_like(x).view(-1).index_put((at_PM[how.own],), own_M)
            x -= rotate(own_N, negative, how.chunk, True).view_as(x)
        if residual is not None:
            write_residual(x, residual, scale)
    step = mean
    if momentum is not None:
        momentum.copy_(momentum * how.mu + mean)
        step = mean + momentum * how.mu if how.nesterov else momentum
    slow.copy_(slow - step * how.lr)
    continue_from(slow, fast, current, x if how.unsent_share else None, how.unsent_share)
    return mean.double().square().sum().view(1)


@land.fake
def _(slow: Tensor, *rest: object) -> Tensor:
    return slow.new_empty(1, dtype=torch.float64)


def continue_from(slow: Tensor, fast: Tensor, current: Tensor | None, unsent: Tensor | None, share: float) -> None:
    """Set the fast weights from which inner steps continue: slow − unsent · share. Overwrites `unsent`.

    current: the progress since the launch, θ − fast, to which the new weights are added; None to set `fast`.
    unsent: the values that were not sent, or None if none of them stay in the fast weights.
    """
    begun = slow if unsent is None else unsent.mul_(-share).add_(slow)
    if current is None:
        fast.copy_(begun)
    else:
        current.add_(begun)
