"""The inner trainer: batches -> inner steps of one worker, with the outer loop attached.

One inner step: `accumulate` micro-batches of `batch` sequences, backward, clip, AdamW, then the outer loop counts it.
Without an inner optimizer (method.reads = "gradients") the accumulated gradient itself goes to the outer loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import Parameter
from torch.optim import Optimizer

from outerloop.core.loop import OuterLoop
from outerloop.core.round import RoundReport
from outerloop.inner.data.corpus import Stream
from outerloop.inner.models import next_token_loss
from outerloop.replica.rank_group import RankGroup
from outerloop.types import Tensors, UserError

PRECISIONS = ("auto", "float32", "bfloat16")


@dataclass(frozen=True)
class StepReport:
    """One inner step: mean loss in nats a token, tokens trained on, the rounds that landed, the inner learning rate
    (None without an inner optimizer), seconds of the step itself and of all that it stood still for the outer loop.

    On an accelerator what `update` has queued may still run; it is waited for with what comes next.
    """

    loss: float
    tokens: int
    lr: float | None
    rounds: list[RoundReport]
    compute_s: float
    outer_s: float


class Trainer:
    """Inner steps of one worker.

    Args:
        model: on its device already.
        forward: what the forward pass calls: the model itself, torch.compile's, or DDP's.
        ranks: the processes that train this model together, each on its part of a batch.
        stream: this process's batches, (batch / ranks, seq_len + 1) int64.
        outer: told of every inner step; where the rank does not lead its island, what it has in place
        (gathered_follower.py). optimizer: (name, parameter) pairs -> inner optimizer; None when the outer optimizer
        does it all. lr_factor: inner step of the run (from 0) -> factor of the optimizer's learning rate.
        warmup_steps: after so many of its own updates a worker may take all of that: one that comes late begins with
            moments of nothing.
        accumulate: micro-batches a step.
        clip_norm: largest global L2 norm of the gradient; None for no limit.
        precision: "auto" takes bfloat16 autocast on CUDA devices that have it, float32 elsewhere.
    """

    def __init__(
        self,
        model: Module,
        *,
        stream: Stream,
        outer: OuterLoop,
        optimizer: Callable[[Iterable[tuple[str, Parameter]]], Optimizer] | None,
        lr_factor: Callable[[int], float],
        warmup_steps: int,
        accumulate: int,
        clip_norm: float | None,
        precision: str,
        forward: Module,
        ranks: RankGroup,
    ) -> None:
        self.model, self.stream, self.outer = model, stream, outer
        outer.announced = True
        self.forward, self.ranks = forward, ranks
        self.params = list(outer.island.params.values())
        self.device = self.params[0].device
        self.optimizer = optimizer(list(outer.island.params.items())) if optimizer else None
        self.peak_lr = [group["lr"] for group in self.optimizer.param_groups] if self.optimizer else []
        self.lr_factor, self.warmup_steps = lr_factor, max(1, warmup_steps)
        self.accumulate, self.clip_norm = accumulate, clip_norm
        self.autocast = autocast_of(precision, self.device)
        self.tokens = self.updates = 0

    def step(self) -> StepReport:
        """One inner step, and whatever rounds fall due after it."""
        began = time.perf_counter()
        self.outer.island.call("step", inner_step=self.outer.inner_step)
        for p in self.params:
            p.grad = None
        windows = [self.stream.next().to(self.device) for _ in range(self.accumulate)]
        loss, lr, still_s = self.outer.island.compute(self.train_on, windows)
        tokens = self.ranks.size * sum(window[:, 1:].numel() for window in windows)
        self.tokens += tokens
        computed = time.perf_counter()
        rounds = self.outer.after_inner_step(self.ranks.size * sum(len(window) for window in windows))
        compute_s = computed - began - still_s
        return StepReport(loss, tokens, lr, rounds, compute_s, time.perf_counter() - began - compute_s)

    def train_on(self, windows: list[Tensor]) -> tuple[float, float | None, float]:
        """One step of the inner optimizer: the mean loss of these micro-batches before it, its learning rate, and the
        seconds that it waited for the outer loop to have read the weights."""
        [loss] = self.ranks.sum([sum(self.backward(window) for window in windows) / self.ranks.size])
        still_s = self.outer.before_update()
        return loss, self.update(), still_s

    def backward(self, window: Tensor) -> float:
        """Loss and gradient of one micro-batch, scaled so that the micro-batches of a step add up to their mean."""
        with self.autocast():
            loss = next_token_loss(self.forward, window) / self.accumulate
        loss.backward()
        return float(loss.detach())

    def update(self) -> float | None:
        """Clip and step the inner optimizer; returns its learning rate (None without one)."""
        if self.optimizer is None:
            return None
        if self.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.params, self.clip_norm)
        factor = min(self.lr_factor(self.outer.inner_step), (self.updates + 1) / self.warmup_steps)
        self.updates += 1
        for group, peak in zip(self.optimizer.param_groups, self.peak_lr, strict=True):
            group["lr"] = peak * factor
        self.optimizer.step()
        self.optimizer.zero_grad()  # other workers of this device may compute next: one model's gradients for all
        return float(self.optimizer.param_groups[0]["lr"])

    @torch.no_grad()
    def evaluate(self, windows: Tensor, weights: Tensors, *, batch: int) -> float:
        """Sum of nats of the model with these weights over all predicted tokens of windows (n, seq_len + 1).

        With several ranks each has windows of its own, all as many, and the sum is over those of all.
        """
        self.outer.before_update()
        with self.outer.replica.weights(weights):
            self.outer.island.call("evaluate")
            return self.outer.island.compute(self.nats, windows, batch)

    @torch.no_grad()
    def nats(self, windows: Tensor, batch: int) -> float:
        """The same with the weights that the model has; all ranks call it."""
        self.model.eval()
        nats = 0.0
        with self.autocast():
            for window in windows.split(batch):
                nats += float(next_token_loss(self.model, window.to(self.device))) * window[:, 1:].numel()
        self.model.train()
        return self.ranks.sum([nats])[0]

    def state_dict(self) -> dict[str, Any]:
        """Fast weights and buffers, inner optimizer, data position, tokens seen, and the outer loop's state."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict() if self.optimizer else None,
            **self.position(),
            "outer": self.outer.evolved(),
        }

    def position(self) -> dict[str, Any]:
        """Data position, tokens seen, updates made: equal on all ranks."""
        return {"stream": self.stream.state_dict(), "tokens": self.tokens, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on exactly where `state_dict` was taken."""
        self.outer.before_update()
        self.model.load_state_dict(state["model"])
        if self.optimizer:
            self.optimizer.load_state_dict(state["optimizer"])
        self.go_on_from(state)
        self.outer.load_state_dict(state["outer"])

    def go_on_from(self, position: dict[str, Any]) -> None:
        """Take over what `position` returned."""
        self.stream.load_state_dict(position["stream"])
        self.tokens, self.updates = position["tokens"], position["updates"]


def autocast_of(precision: str, device: torch.device) -> Callable[[], AbstractContextManager]:
    """The context of the forward pass. Raises UserError for an unknown precision."""
    if precision not in PRECISIONS:
        raise UserError(f"inner.precision={precision!r} is not one of {', '.join(PRECISIONS)}")
    capable = device.type == "cuda" and torch.cuda.is_bf16_supported()
    if precision == "bfloat16" or (precision == "auto" and capable):
        return lambda: torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext


def pick_device(name: str, index: int) -> torch.device:
    """ "auto": CUDA, else Apple's GPU, else the CPU. Raises UserError for what is unknown or not there.

    The local workers of a machine with several CUDA devices take them in turn, by their index.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, available in there.items() if available)
    if name not in there or not there[name]:
        available = ", ".join(["auto", *(kind for kind, yes in there.items() if yes)])
        raise UserError(f"inner.device={name!r} is not available here, which has {available}: type inner.device=auto")
    return torch.device(name, index % torch.cuda.device_count()) if name == "cuda" else torch.device(name)
