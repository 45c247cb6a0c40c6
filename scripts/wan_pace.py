"""Define an AdamW whose inner steps take a given time, to emulate a GPU that this machine lacks.

    inner.optimizer._target_=wan_pace.PacedAdamW +inner.optimizer.step_s=0.2

After each step, the process sleeps until `step_s` seconds have passed since the step's first forward pass. This
EMULATES the only property of a GPU that matters to the network: during a step, the inner loop uses neither the network
nor much of the CPU. A step that takes longer than `step_s` is not shortened.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook


class PacedAdamW(torch.optim.AdamW):
    """AdamW whose inner steps take `step_s` seconds, from the first forward pass to the end of `step`.

    `hook` observes the forward passes of all modules in this process until `hook.remove()` is called. `began_s` is the
    start of the current inner step's first forward pass, or None before that pass.
    """

    def __init__(
        self,
        params: Any,
        *,
        lr: float,
        betas: tuple[float, float],
        weight_decay: float,
        fused: bool,
        step_s: float,
    ) -> None:
        super().__init__(params, lr=lr, betas=(betas[0], betas[1]), weight_decay=weight_decay, fused=fused)
        self.step_s = step_s
        self.began_s: float | None = None
        self.hook = register_module_forward_pre_hook(self.note)

    def note(self, module: torch.nn.Module, arguments: Any) -> None:
        """Record the start of a forward pass, unless it is part of an evaluation."""
        if module.training and self.began_s is None:
            self.began_s = time.monotonic()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step, then sleep for the rest of `step_s`."""
        loss = super().step(closure)
        now_s = time.monotonic()
        began_s, self.began_s = now_s if self.began_s is None else self.began_s, None
        time.sleep(max(0.0, began_s + self.step_s - now_s))
        return loss
