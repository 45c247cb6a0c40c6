"""What takes long, imported and used once: processes of a test are forked from one that has imported this module."""

import gc
from importlib import import_module

import numba

from outerloop.config import load

for module in (
    "outerloop.config.from_recipe",
    "outerloop.core.state.distributed_checkpoint",
    "outerloop.launcher.torchrun.rank",
    "outerloop.launcher.train",
    "outerloop.report.run_figure",
    "tests.support.sharded_islands",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "transformers.models.llama.modeling_llama",
):
    import_module(module)
load.load([])
numba.njit(lambda x: x + 1)(1)
gc.freeze()
