"""LoCo (arXiv 2407.04480): 4-bit gradients in every step, for DDP and FSDP2, without an outer loop.

state = outerloop.loco.State()
ddp.register_comm_hook(state, outerloop.loco.ddp_hook)      # DistributedDataParallel
outerloop.loco.fsdp_hook(state, model)                      # fully_shard
"""

from outerloop.loco.ddp import ddp_hook
from outerloop.loco.fsdp2 import fsdp_hook
from outerloop.loco.state import State

__all__ = ["State", "ddp_hook", "fsdp_hook"]
