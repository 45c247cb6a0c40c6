"""An inner optimizer that makes an inner step take a given time: for what a GPU does that this machine lacks.

    inner.optimizer._target_=wan_pace.PacedAdamW +inner.optimizer.step_s=0.2

The step is taken as ever; then the process sleeps until so much time has passed since its first forward pass. An
EMULATION, of the one thing that matters to a network: for so long the inner loop needs neither the network nor much of
the CPU. A step that takes longer by itself is not made shorter.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

began: list[float] = []
"""When the first forward pass of this inner step began, once it has."""


def note(module: torch.nn.Module, arguments: Any) -> None:
    """A forward pass begins; those of evaluations do not count."""
    if module.training and not began:
        began.append(time.monotonic())


register_module_forward_pre_hook(note)


class PacedAdamW(torch.optim.AdamW):
    """AdamW; `step_s`: seconds from the first forward pass to the end of `step`."""

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
        super().__init__(params, lr=lr, betas=tuple(betas), weight_decay=weight_decay, fused=fused)
        self.step_s = step_s

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One update, and a sleep."""
        loss = super().step(closure)
        since = began.pop() if began else time.monotonic()
        time.sleep(max(0.0, since + self.step_s - time.monotonic()))
        return loss
