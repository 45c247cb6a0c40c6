"""LoCo (arXiv 2407.04480) as a communication hook of DistributedDataParallel: 4 bits in both directions.

Each rank sends (1 + 4/64) (R - 1) / R bytes per value. A float32 ring all-reduce sends 8 (R - 1) / R bytes per value,
so this hook sends 0.133 times as much. The backward pass waits for the exchange of each bucket, so use this hook only
if communication is slower than computation.

Shapes: N values per bucket, R ranks, P values per rank's piece of a bucket.
"""
# No `from __future__ import annotations` in this file: register_comm_hook compares annotations with expected types.

import torch
from torch import distributed as dist
from torch.nn.functional import pad

from outerloop.loco.state import State


def ddp_hook(state: State, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Return the mean of all ranks' gradients in this bucket, as a completed future.

    Register this hook with `ddp.register_comm_hook(state, outerloop.loco.ddp_hook)`. Gradients of any dtype are summed
    in float32. With one rank, they are unchanged.
    """
    mean: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    mean.set_result(averaged(state, bucket))
    state.backward_passes += bucket.is_last()
    return mean


def averaged(state: State, bucket: dist.GradBucket) -> torch.Tensor:
    """Average the bucket's gradients (N,) over all ranks, in place.

    The compression errors of the first backward pass are not stored: DDP regroups its buckets after this pass, so the
    errors would be added to the gradients of other parameters.
    """
    x_N, group = bucket.buffer(), state.process_group
    ranks = dist.get_world_size(group)
    if ranks == 1:
        return x_N
    name = f"bucket {bucket.index()}" if state.backward_passes else None
    x_RP = pad(x_N.float(), (0, -len(x_N) % ranks)).view(ranks, -1)
    mean_P = state.scatter(name, x_RP, group) / ranks
    mean_RP = state.gather(name and f"{name}, mean", mean_P, group)
    return x_N.copy_(mean_RP.reshape(-1)[: len(x_N)])
