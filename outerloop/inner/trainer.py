"""Train one worker's model: turn batches into inner steps, and run the outer loop after each step.

An inner step consists of forward and backward passes over `accumulate` batches of `batch` sequences, gradient clipping,
and a step of the inner optimizer. A batch that does not fit in memory at once is split into micro-batches, one pass
each. Then the outer loop counts the step. If there is no inner optimizer (method.reads = "gradients"), the outer loop
reads the accumulated gradient.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import Parameter
from torch.optim import Optimizer

from outerloop.core.round import RoundReport
from outerloop.inner.data.corpus import Stream
from outerloop.inner.hooks import TrainerHooks
from outerloop.inner.models import next_token_loss
from outerloop.replica.rank_group import RankGroup
from outerloop.types import Tensors, UserError

Outer = TypeVar("Outer", bound=TrainerHooks)
PRECISIONS = ("auto", "float32", "bfloat16")


class StepObserver(Protocol):
    """Observes the inner steps of a trainer."""

    def begin_step(self) -> None:
        """Observe the state before an inner step."""
        ...

    def after_update(self) -> None:
        """Observe the state after the update of an inner step, before the outer loop counts the step."""
        ...

    def after_rounds(self, rounds: Sequence[RoundReport]) -> None:
        """Observe the rounds that landed or failed after an inner step."""
        ...


@dataclass(frozen=True)
class StepReport:
    """The result of one inner step.

    loss: mean loss in nats per token.
    tokens: number of tokens in the step.
    lr: learning rate of the inner optimizer; None if there is no inner optimizer.
    rounds: reports of the rounds that landed or failed after the step.
    compute_s: seconds spent on the step itself.
    outer_s: seconds for which the outer loop, and audits of inner steps, delayed training.

    On an accelerator, kernels queued by `update` may still be running when `compute_s` is measured. Their time is then
    attributed to the next operation that waits for them.
    """

    loss: float
    tokens: int
    lr: float | None
    rounds: Sequence[RoundReport]
    compute_s: float
    outer_s: float


class Trainer(Generic[Outer]):
    """Trains the model of one worker.

    Args:
        model: the model, already on its device.
        forward: module called in the forward pass: the model itself, or its torch.compile or DDP wrapper.
        ranks: the processes that train this model together, each on its part of a batch.
        stream: this process's batches, (batch / ranks, seq_len + 1) int64.
        outer: counts every inner step; the outer loop, or its stand-in on a non-leader rank of a gathered island
            (gathered_follower.py).
        optimizer: (name, parameter) pairs -> inner optimizer; None if only the outer optimizer updates the weights.
        lr_factor: inner step of the run (from 0) -> factor by which the optimizer's learning rate is multiplied.
        warmup_steps: number of this worker's first updates in which a linear ramp limits the factor. A late joiner
            needs the ramp, because its optimizer moments start at zero.
        accumulate: number of batches per step.
        micro_batch: maximum number of sequences per forward and backward pass; None for a whole batch.
        clip_norm: maximum global L2 norm to which the gradient is clipped; None for no limit.
        precision: one of PRECISIONS; see `pick_precision`.

    The attribute `observer` observes each inner step; None: no observer.
    """

    observer: StepObserver | None = None

    def __init__(
        self,
        model: Module,
        *,
        stream: Stream,
        outer: Outer,
        optimizer: Callable[[Iterable[tuple[str, Parameter]]], Optimizer] | None,
        lr_factor: Callable[[int], float],
        warmup_steps: int,
        accumulate: int,
        micro_batch: int | None,
        clip_norm: float | None,
        precision: str,
        forward: Module,
        ranks: RankGroup,
    ) -> None:
        self.model, self.stream, self.outer = model.train(), stream, outer  # from_pretrained returns eval mode
        outer.notifies_updates = True
        self.forward, self.ranks = forward, ranks
        self.params = list(outer.island.params.values())
        self.device = self.params[0].device
        self.make_optimizer = optimizer
        self.optimizer = optimizer(list(outer.island.params.items())) if optimizer else None
        self.peak_lr = [group["lr"] for group in self.optimizer.param_groups] if self.optimizer else []
        self.lr_factor, self.warmup_steps = lr_factor, max(1, warmup_steps)
        self.accumulate, self.micro_batch, self.clip_norm = accumulate, micro_batch, clip_norm
        self.precision, self.autocast = precision, autocast_context(precision, self.device)
        self.tokens = self.updates = 0

    def step(self) -> StepReport:
        """Take one inner step, then launch and land the rounds that are due after it."""
        start_s = time.perf_counter()
        if self.observer:
            self.observer.begin_step()
        began_s = time.perf_counter()
        self.outer.island.run_on_followers("step", inner_step=self.outer.inner_step)
        for p in self.params:
            p.grad = None
        windows = [self.stream.next().to(self.device) for _ in range(self.accumulate)]
        loss, lr, stall_s = self.outer.island.compute(self.train_on, windows)
        tokens = self.ranks.size * sum(window[:, 1:].numel() for window in windows)
        self.tokens += tokens
        computed_s = time.perf_counter()
        if self.observer:
            self.observer.after_update()
        rounds = self.outer.after_inner_step(self.ranks.size * sum(len(window) for window in windows))
        if self.observer:
            self.observer.after_rounds(rounds)
        compute_s = computed_s - began_s - stall_s
        return StepReport(loss, tokens, lr, rounds, compute_s, time.perf_counter() - start_s - compute_s)

    def train_on(self, windows: list[Tensor]) -> tuple[float, float | None, float]:
        """Take one step of the inner optimizer on these batches.

        Return the mean loss before the step, the learning rate, and the seconds spent waiting for the outer loop to
        finish reading the weights.
        """
        [loss] = self.ranks.all_reduce([sum(self.backward(window) for window in windows) / self.ranks.size])
        stall_s = self.outer.before_update()
        return loss, self.update(), stall_s

    def backward(self, window: Tensor) -> float:
        """Add the gradient of one batch to the gradients and return its loss, both divided by `accumulate`.

        The sums over all batches of a step are therefore means. The micro-batches of a batch may have different sizes:
        each is weighted by its number of sequences.
        """
        total = 0.0
        for part in window.split(self.micro_batch or len(window)):
            with self.autocast():
                loss = next_token_loss(self.forward, part) / (self.accumulate * len(window) / len(part))
            loss.backward()
            total += float(loss.detach())
        return total

    def update(self) -> float | None:
        """Clip the gradient and step the inner optimizer. Return its learning rate (None without an optimizer)."""
        if self.optimizer is None:
            return None
        if self.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.params, self.clip_norm)
        factor = min(self.lr_factor(self.outer.inner_step), (self.updates + 1) / self.warmup_steps)
        self.updates += 1
        for group, peak in zip(self.optimizer.param_groups, self.peak_lr, strict=True):
            group["lr"] = peak * factor
        self.optimizer.step()
        # Workers that share a device take turns. Free the gradients here, so that only one worker's are in memory.
        self.optimizer.zero_grad()
        return float(self.optimizer.param_groups[0]["lr"])

    @torch.no_grad()
    def evaluate(self, windows: Tensor, weights: Tensors, *, batch: int) -> float:
        """Return the total loss in nats with `weights`, over all predicted tokens of all ranks' windows.

        If buffers are averaged, their last means belong to the weights.

        `windows`: this rank's windows, (n, seq_len + 1), the same number on every rank.
        """
        self.outer.before_update()
        with self.outer.temporary_weights(weights):
            self.outer.island.run_on_followers("evaluate")
            return self.outer.island.compute(self.nats, windows, batch)

    @torch.no_grad()
    def nats(self, windows: Tensor, batch: int) -> float:
        """Return the total loss like `evaluate`, but with the model's current weights. All ranks must call this."""
        self.model.eval()
        nats = 0.0
        with self.autocast():
            for window in windows.split(batch):
                nats += float(next_token_loss(self.model, window.to(self.device))) * window[:, 1:].numel()
        self.model.train()
        return self.ranks.all_reduce([nats])[0]

    def state_dict(self) -> dict[str, Any]:
        """Return fast weights, buffers, inner optimizer state, `position`, and the outer loop's state."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict() if self.optimizer else None,
            **self.position(),
            "outer": self.outer.evolved(),
        }

    def position(self) -> dict[str, Any]:
        """Return the data position, the token count and the update count, which are equal on all ranks."""
        return {"stream": self.stream.state_dict(), "tokens": self.tokens, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `state_dict`, so that training resumes exactly where it was."""
        self.outer.before_update()
        self.model.load_state_dict(state["model"])
        if self.optimizer:
            self.optimizer.load_state_dict(state["optimizer"])
        self.resume_from(state)
        self.outer.load_state_dict(state["outer"])

    def resume_from(self, position: dict[str, Any]) -> None:
        """Restore a position returned by `position`."""
        self.stream.load_state_dict(position["stream"])
        self.tokens, self.updates = position["tokens"], position["updates"]


def autocast_context(precision: str, device: torch.device) -> Callable[[], AbstractContextManager]:
    """Return a function that creates an autocast context for `precision`. Raises UserError if it is unknown."""
    if pick_precision(precision, device) == "bfloat16":
        return lambda: torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext


def pick_precision(name: str, device: torch.device) -> str:
    """Return "float32" or "bfloat16". "auto" is bfloat16 on GPUs that compute in it, float32 elsewhere.

    A GPU that only emulates bfloat16 (CUDA capability below 8.0) computes faster in float32. Raises UserError if the
    precision is unknown.
    """
    if name not in PRECISIONS:
        raise UserError(f"inner.precision={name!r} is not one of {', '.join(PRECISIONS)}")
    if name != "auto":
        return name
    native = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if native else "float32"


def pick_device(name: str, index: int) -> torch.device:
    """Return the device called `name`. "auto" prefers CUDA, then Apple's GPU (mps), then the CPU.

    Local workers are assigned round-robin to CUDA devices by their `index`. Raises UserError if the device is unknown
    or not available.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, names in available.items() if names)
    if name not in available or not available[name]:
        names = ", ".join(["auto", *(kind for kind, usable in available.items() if usable)])
        raise UserError(f"inner.device={name!r} is not available here; available: {names}. Set inner.device=auto")
    return torch.device(name, index % torch.cuda.device_count()) if name == "cuda" else torch.device(name)
