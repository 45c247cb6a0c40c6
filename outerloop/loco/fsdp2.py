"""LoCo (arXiv 2407.04480) in the reduce-scatter of FSDP2: every shard's gradients reach their rank in 4 bits.

1/2 + 2/256 bytes a value in place of 4: .127x of a float32 reduce-scatter. The all-gather of the weights and the
all-reduce between the replicas of HSDP stay as they are. R ranks, P values a shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.fsdp import FSDPModule

from outerloop.loco.state import State
from outerloop.types import UserError


def fsdp_hook(state: State, model: nn.Module) -> None:
    """From now on all of the model's `fully_shard` modules send gradients through `state`.

    Raises:
        UserError: if there is none.
    """
    sharded = {name: module for name, module in model.named_modules() if isinstance(module, FSDPModule)}
    if not sharded:
        raise UserError(f"{type(model).__name__} has no FSDP2 module: call fully_shard(model) before fsdp_hook")
    for name, module in sharded.items():
        comm: Any = Scatter(state, name or "model")
        module.set_custom_reduce_scatter(comm)


class Scatter:
    """torch's ReduceScatter (`FSDPModule.set_custom_reduce_scatter`) of one module."""

    def __init__(self, state: State, name: str) -> None:
        self.state, self.name = state, name

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Memory for the gradients of all ranks, and for those of this one."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """input (R * P,) -> output (P,): the sum or the mean of all ranks' shards, there when this returns.

        Raises:
            UserError: if another factor was set for the gradients.
        """
        if op not in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
            raise UserError(
                f"reduce op {op} is neither a sum nor a mean: with a gradient divide factor of your own call"
                " model.set_force_sum_reduction_for_comms(True)"
            )
        ranks = group.size()
        sum_P = self.state.scatter(self.name, input_tensor.view(ranks, -1).float(), group)
        output_tensor.copy_(sum_P / ranks if op == dist.ReduceOp.AVG else sum_P)
