"""LoCo (arXiv 2407.04480) as a communication hook of DistributedDataParallel: 4 bits to the owners, 4 bits back.

1 + 4/256 bytes a value in place of 8 (times (R - 1) / R): .127x of a float32 ring. Bucket by bucket: the backward pass
waits for each, so this is for links that are slower than the computation. N values of a bucket, R ranks.
"""
# Annotations stay objects in this file: register_comm_hook compares them with the types that it expects.

import torch
from torch import distributed as dist
from torch.nn.functional import pad

from outerloop.loco.state import State


def ddp_hook(state: State, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The mean of all ranks' gradients: `ddp.register_comm_hook(state, outerloop.loco.ddp_hook)`.

    Gradients of any dtype are summed in float32. One rank keeps its own as they are.
    """
    mean: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    mean.set_result(averaged(state, bucket))
    state.backward_passes += bucket.is_last()
    return mean


def averaged(state: State, bucket: dist.GradBucket) -> torch.Tensor:
    """The bucket's gradients (N,), in place.

    DDP regroups its buckets after the first backward pass: an error of that pass would land on other parameters.
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
