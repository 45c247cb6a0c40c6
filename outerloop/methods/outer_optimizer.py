"""Use any torch optimizer as the outer optimizer. Steps of SGD and AdamW have the same bits on every machine.

    ḡ = aggregate_p Δ̂_p;   φ ← optimizer(φ, ḡ)          Δ = φ − θ  (reads = "weights"),  or ∇ (reads = "gradients")

Δ̂_p is the decoded contribution of peer p, φ the slow weights, θ the fast weights, and ∇ the gradient of one step.

DiLoCo (arXiv 2311.08105): SGD with Nesterov momentum, η 0.7, μ 0.9:   b ← μ b + ḡ;  φ ← φ − η (ḡ + μ b).
SparseLoCo (arXiv 2508.15706) and plain averaging (LocalSGD): plain SGD, η 1.
DDP: reads = "gradients", H = 1. The optimizer (AdamW, Muon or another inner optimizer) receives the averaged gradient
of a single step, and workers take no inner steps.

exact_sgd.py and exact_adamw.py compute the steps of SGD and AdamW. They use torch's own state, so checkpoints are
compatible with torch's optimizers. All other optimizers use torch's own step, whose last bits depend on the machine.
Replicas then stay equal only on identical hardware (`portable` is False).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from outerloop.aggregate.exact_norms import sum_of_squares
from outerloop.kernels.portable import exact_sum
from outerloop.kernels.specs import SGDSpec, SGDStep
from outerloop.methods.exact_adamw import adamw
from outerloop.methods.exact_sgd import sgd
from outerloop.types import Tensors, UserError


def check_factor(name: str, factor: object) -> None:
    """Raise UserError if a factor is neither a function nor None. `name`: its option, for the message."""
    if factor is not None and not callable(factor):
        raise UserError(f"method.{name}={factor} must be a function of the round, or null: set method.{name}=null")


class Differences:
    """Base class of methods in which peers contribute pseudo-gradients or gradients.

    All peers receive the same mean, so their slow weights stay equal.

    Args:
        reads: "weights" for pseudo-gradients, "gradients" for the gradient of a single step.

    Raises:
        UserError: if `reads` is neither "weights" nor "gradients".
    """

    shared = True
    sends: Literal["differences"] = "differences"

    def __init__(self, reads: Literal["weights", "gradients"]) -> None:
        if reads not in ("weights", "gradients"):
            raise UserError(f"method.reads={reads!r} is not one of weights, gradients: set method.reads=weights")
        self.reads = reads

    def outgoing(self, slow: Tensors, read: Tensors) -> Tensors:
        """Return the pseudo-gradients, slow − read; or `read` unchanged, if this method reads gradients."""
        if self.reads == "gradients":
            return read
        return {name: slow[name] - fast for name, fast in read.items()}


Rule = Callable[[Tensor, Tensor, dict[str, Any], dict[str, Any]], None]
"""Function of (slow weights, gradient, optimizer state, parameter group) that updates the weights in place."""
RULES: dict[type[Optimizer], Rule] = {torch.optim.SGD: sgd, torch.optim.AdamW: adamw}
NOT_IN_RULES = ("maximize", "amsgrad")
"""Settings of SGD and AdamW that the rules do not support."""
SETTINGS = ("lr", "momentum", "dampening", "nesterov", "betas", "eps", "weight_decay")
"""Settings that a saved state does not change. Other optimizers may keep values in a group that change with the steps,
which must be loaded."""


class OuterOptimizer(Differences):
    """A method that takes a torch optimizer step on the slow weights, with the aggregated contributions as `.grad`.

    Args:
        optimizer: function that creates a torch optimizer from (name, tensor) pairs; Muon needs the names.
        reads: "weights" for pseudo-gradients, "gradients" for the gradient of a single step.
        lr_factor: round (from 0) -> factor for the optimizer's learning rate; None keeps it constant.
        momentum_factor: round (from 0) -> factor for the optimizer's momentum; None keeps it constant.
        clip_norm: maximum global L2 norm of the aggregated contributions; None for no limit.

    Raises:
        UserError: if `reads` is neither "weights" nor "gradients", if a factor is not a function, if clip_norm, the
            learning rate or the momentum is out of range, or if the optimizer cannot step with dense gradients alone.
    """

    def __init__(
        self,
        *,
        optimizer: Callable[[list[tuple[str, Tensor]]], Optimizer],
        reads: Literal["weights", "gradients"] = "weights",
        lr_factor: Callable[[int], float] | None = None,
        momentum_factor: Callable[[int], float] | None = None,
        clip_norm: float | None = None,
    ) -> None:
        super().__init__(reads)
        check_factor("lr_factor", lr_factor)
        check_factor("momentum_factor", momentum_factor)
        self.make, self.clip_norm = optimizer, clip_norm
        self.factors = {"lr": lr_factor, "momentum": momentum_factor}
        self.scheduled = lr_factor is not None or momentum_factor is not None
        probe = self.probe()
        self.momentum = float(probe.defaults.get("momentum", 0.0))
        self.check_ranges(float(probe.defaults.get("lr", 1.0)))
        self.rule = rule_of(probe)
        if self.rule is None:
            try_step(probe)
        self.portable = self.rule is not None
        self.rounds: dict[str, int] = {}

    def check_ranges(self, lr: float) -> None:
        """Raise UserError if a setting is out of range. `lr`: the optimizer's learning rate."""
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise UserError(f"method.clip_norm={self.clip_norm} must be above 0: set it to null for no limit")
        if not 0 <= lr < math.inf:
            raise UserError(f"method.optimizer.lr={lr} must be 0 or more, and finite: set it to 0.7, for example")
        if not 0 <= self.momentum < 1:
            raise UserError(f"method.optimizer.momentum={self.momentum} must be 0 or more, and below 1: set it to 0.9")

    def init(self, slow: Tensors) -> None:
        """Create the optimizer that will update these slow weights in place.

        Raises UserError if the optimizer rejects these weights, or lacks a setting for which a factor is given.
        """
        try:
            self.optimizer = self.make(list(slow.items()))
        except UserError:
            raise
        except ValueError as error:
            raise UserError(f"the optimizer of method.optimizer rejects the model: {error}") from error
        for key, factor in self.factors.items():
            if factor is not None and key not in self.optimizer.defaults:
                raise UserError(
                    f"method.{key}_factor is set, but {type(self.optimizer).__name__} has no {key}: set the factor to"
                    " null"
                )
        self.peak: dict[str, list[Any]] = {
            key: [group.get(key) for group in self.optimizer.param_groups] for key in self.factors
        }

    def update(self, slow: Tensors, mean: Tensors, own: Tensors) -> None:
        """Take one optimizer step on the parameters in `mean`. All other parameters stay unchanged."""
        if self.clip_norm is not None:
            factor = clip_factor(mean, self.clip_norm)
            mean = {name: m * factor for name, m in mean.items()}
        for name, x in slow.items():
            x.grad = mean[name].to(x.dtype) if name in mean else None
        self.set_factors(self.updates(next(iter(mean))))
        self.step()
        self.optimizer.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Update the slow weights that have a gradient, by the exact rule if there is one, else by torch's own step."""
        if self.rule is None:
            self.optimizer.step()
            return
        for group in self.optimizer.param_groups:
            for x in group["params"]:
                if x.grad is not None:
                    self.rule(x, x.grad, self.optimizer.state[x], group)

    def probe(self) -> Optimizer:
        """Create the optimizer for a small dummy matrix, so that its settings can be read."""
        return self.make([("layers.0.weight", torch.zeros(1, 1))])

    def sgd_spec(self) -> SGDSpec | None:
        """Return the description of the update for the kernels. Call this after `init`.

        Returns None unless the update is plain SGD on pseudo-gradients, with the same settings for all parameters.
        """
        group, *others = self.optimizer.param_groups
        extras = ("weight_decay", "dampening", "maximize")
        plain = type(self.optimizer) is torch.optim.SGD and not others and not any(group[extra] for extra in extras)
        fits = plain and self.reads == "weights" and self.clip_norm is None
        return SGDSpec(self.sgd_step, self.momentum_of) if fits else None

    def sgd_step(self, first: str) -> SGDStep:
        """Count an update of a fragment and return its settings. `first`: name of the fragment's first tensor."""
        self.set_factors(self.updates(first))
        group = self.optimizer.param_groups[0]
        return SGDStep(group["lr"], group["momentum"], group["nesterov"])

    def momentum_of(self, slow: Tensor) -> Tensor:
        """Return the momentum buffer of a slow-weight tensor, created as zeros before the first update."""
        state = self.optimizer.state[slow]
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(slow)
        return state["momentum_buffer"]

    def updates(self, first: str) -> int:
        """Return the number of earlier updates of a fragment, and add one. `first`: name of its first tensor."""
        self.rounds[first] = self.rounds.get(first, 0) + 1
        return self.rounds[first] - 1

    def set_factors(self, round: int) -> None:
        """Set the learning rate and momentum for this round, where factors are given."""
        for key, factor in self.factors.items():
            for group, peak in zip(self.optimizer.param_groups, self.peak[key], strict=True):
                if factor is not None:
                    group[key] = peak * factor(round)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state and the update count of each fragment."""
        return {"optimizer": self.optimizer.state_dict(), "rounds": dict(self.rounds)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state returned by `state_dict`, but keep the local settings of the optimizer. Call this after `init`.

        Settings that have a factor are loaded, because each update computes them from the local settings.
        """
        kept = [key for key in SETTINGS if not self.factors.get(key)]
        local = [{key: group[key] for key in kept if key in group} for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(state["optimizer"])
        for group, settings in zip(self.optimizer.param_groups, local, strict=True):
            group.update(settings)
        self.rounds = dict(state["rounds"])


def rule_of(optimizer: Optimizer) -> Rule | None:
    """Return the bit-exact rule for this optimizer's step, or None if torch's own step must be used."""
    if any(group.get(setting) for group in optimizer.param_groups for setting in NOT_IN_RULES):
        return None
    return RULES.get(type(optimizer))


def try_step(probe: Optimizer) -> None:
    """Take a step with an optimizer of dummy weights. Raises UserError if it needs more than dense gradients.

    Optimizers with `capturable` are not tried, because they only step on GPUs.
    """
    if any(group.get("capturable") for group in probe.param_groups):
        return
    for group in probe.param_groups:
        for x in group["params"]:
            x.grad = torch.zeros_like(x)
    try:
        probe.step()
    except (AssertionError, TypeError, RuntimeError) as error:
        kind = type(probe).__name__
        raise UserError(
            f"{kind} of method.optimizer cannot take an outer step ({error}): set an optimizer that steps without a"
            " closure on dense gradients, such as torch.optim.SGD"
        ) from error


def clip_factor(tensors: Tensors, max_norm: float) -> float:
    """Return the factor that clips tensors to a global L2 norm of `max_norm`, at most 1.

    The result has the same bits on every machine.
    """
    norm = math.sqrt(exact_sum(sum_of_squares(x, of=x.numel()) for x in tensors.values()))
    return min(1.0, max_norm / (norm + 1e-6))
