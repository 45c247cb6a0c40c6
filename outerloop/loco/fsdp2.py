"""LoCo (arXiv 2407.04480) in the reduce-scatter of FSDP2: gradients are sent in 4 bits to the owner of their shard.

Each rank sends 1/2 + 2/64 bytes per value instead of the 4 bytes of a float32 reduce-scatter, which is 0.133 times as
much. The all-gather of the weights and the all-reduce between HSDP replicas are unchanged.

Shapes: R ranks, P values per shard.
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
    """Make all `fully_shard` modules of the model reduce-scatter their gradients through `state`.

    Raises:
        UserError: if the model has no such module.
    """
    sharded = {name: module for name, module in model.named_modules() if isinstance(module, FSDPModule)}
    if not sharded:
        raise UserError(f"{type(model).__name__} has no FSDP2 module: call fully_shard(model) before fsdp_hook")
    for name, module in sharded.items():
        comm: Any = Scatter(state, f"module {name!r}")
        module.set_custom_reduce_scatter(comm)


class Scatter:
    """Custom reduce-scatter of one module, for `FSDPModule.set_custom_reduce_scatter` (torch's ReduceScatter)."""

    def __init__(self, state: State, name: str) -> None:
        self.state, self.name = state, name

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate a buffer: the input of the reduce-scatter (R * P,) or its output (P,), as `size` states."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Reduce the input (R * P,) to the output (P,), the sum or mean over all ranks. Blocks until it is complete.

        Raises:
            UserError: if `op` is neither sum nor mean; this happens if a gradient divide factor was set.
        """
        if op not in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
            raise UserError(
                f"reduce op {op} is neither a sum nor a mean: if you set a gradient divide factor, call"
                " model.set_force_sum_reduction_for_comms(True)"
            )
        ranks = group.size()
        sum_P = self.state.scatter(self.name, input_tensor.view(ranks, -1).float(), group)
        output_tensor.copy_(sum_P / ranks if op == dist.ReduceOp.AVG else sum_P)
