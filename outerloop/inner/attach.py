"""Attach the outer loop to any training loop. Every step of the optimizer counts as an inner step.

    outer = outerloop.from_recipe("sparseloco", model, peers=4)
    outerloop.attach(optimizer, outer)

Gradient accumulation (several backward passes, then one step) needs no settings. A step that GradScaler skips is not
counted. A training loop that counts skipped steps as well, as the Trainers of transformers and Lightning do, calls
`count_up_to` after each step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

import torch
from torch.optim import Optimizer

from outerloop.core.round import RoundReport
from outerloop.inner.hooks import StepHooks
from outerloop.types import UserError

logger = logging.getLogger(__name__)


class Attached:
    """Attaches an outer loop to an optimizer by hooks on `optimizer.step`.

    The hooks stay in place until `remove` is called or the `with` block ends.

    Args:
        optimizer: optimizer of all trainable parameters of the model that `outer` was made for; it may have other
            parameters as well. Optimizers returned by `accelerator.prepare` and `fabric.setup` are accepted. If there
            are several optimizers, such as Muon and AdamW for different parameters, pass a list in the order in which
            they step; only the steps of the last one are counted.
        outer: the outer loop, which counts every step; its rounds launch and land inside `optimizer.step`. On a rank
            that does not lead its island, pass the `Follower` that stands in for the outer loop.
        samples: training samples (sequences) per step; used only as the weight in a sample-weighted mean.
        on_round: called with the report of every round that landed or failed.
        sole_writer: whether the weights change only in `optimizer.step`; False if, for example, averaged weights
            replace them during evaluation. If True, a delayed launch copies the weights in the background; if False,
            the step that launches a round waits for this copy.

    Attributes:
        counted: number of inner steps counted by this object.

    Raises:
        UserError: if `samples` is not a positive whole number, if `outer` is attached already, or another outer loop
            of the same parameters is, if the optimizer does not call its step hooks or does not train a parameter that
            would be exchanged, or if a trainable parameter was added to the model after `outer` was made.
    """

    def __init__(
        self,
        optimizer: Any,
        outer: StepHooks,
        *,
        samples: int = 1,
        on_round: Callable[[RoundReport], None] | None = None,
        sole_writer: bool = False,
    ) -> None:
        check_samples(samples)
        optimizers = [*map(hooked_optimizer, optimizer if isinstance(optimizer, list | tuple) else [optimizer])]
        if outer.is_attached:
            raise UserError(
                "this outer loop is attached already, so every inner step would be counted twice: call remove() on the"
                " object that attach returned, or make another outer loop"
            )
        outer.island.check_parameters()
        check_covered(optimizers, outer)
        check_unshared(optimizers, outer)
        warn_of_other_optimizer(optimizers, outer)
        self.outer, self.samples, self.on_round = outer, samples, on_round
        self.counted = 0
        outer.is_attached, outer.notifies_updates = True, sole_writer
        eager = torch.compiler.disable  # a compiled optimizer step must not compile the rounds
        after_step = eager(self._after_step)
        after_step.outer = outer  # for check_unshared
        self.handles = [optimizers[-1].register_step_post_hook(after_step)]
        if sole_writer:
            self.handles += [each.register_step_pre_hook(eager(self._before_step)) for each in optimizers]

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.outer.before_update()

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not is_skipped(optimizer):
            self._count_step()

    def count_up_to(self, steps: int) -> None:
        """Count the steps that GradScaler skipped as inner steps without an update, until `steps` are counted in total.

        Discards the gradients of these steps, which have overflowed, because some methods exchange gradients.
        """
        while self.counted < steps:
            for p in self.outer.island.params.values():
                p.grad = None
            self._count_step()

    def _count_step(self) -> None:
        self.counted += 1
        for report in self.outer.after_inner_step(self.samples):
            if report.failed:
                logger.warning("%s did not complete: %s", report.round, report.failed)
            for note in report.notes:
                logger.info("%s: %s", report.round, note)
            if self.on_round is not None:
                self.on_round(report)

    def remove(self) -> None:
        """Remove the hooks from the optimizer. Later calls do nothing. Raises errors of a delayed launch."""
        if not self.handles:
            return
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        self.outer.is_attached = False
        try:
            self.outer.before_update()
        finally:
            self.outer.notifies_updates = False

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


attach = Attached


def is_skipped(optimizer: Optimizer) -> bool:
    """Return whether GradScaler makes a fused optimizer skip the step that it has just called: a gradient overflowed.

    Waits for the optimizer's device.
    """
    found = getattr(optimizer, "found_inf", None)  # set by GradScaler during the step of a fused optimizer
    return found is not None and bool(found)


def hooked_optimizer(optimizer: Any) -> Optimizer:
    """Return the optimizer whose step calls hooks: `optimizer` itself, or the optimizer that it wraps.

    Accelerate's wrapper has no hooks. It steps the wrapped optimizer once all gradients are accumulated. Fabric's
    wrapper shows the hooks of the wrapped optimizer as its own.

    Raises UserError if neither has hooks, or if its step does not call them: torch makes `step` call them in
    `Optimizer.__init__`, which some wrappers do not call.
    """
    hooks, wrapped = getattr(optimizer, "_optimizer_step_post_hooks", None), getattr(optimizer, "optimizer", None)
    has_own = hooks is not None and hooks is not getattr(wrapped, "_optimizer_step_post_hooks", None)
    hooked: Any = optimizer if has_own else wrapped
    if not hasattr(hooked, "register_step_post_hook"):
        raise UserError(
            f"attach takes an optimizer and an outer loop, but a {type(optimizer).__name__} is not an optimizer with"
            " step hooks: call outerloop.attach(optimizer, outer)"
        )
    if not getattr(type(hooked).step, "hooked", False):
        raise UserError(
            f"{type(hooked).__name__} does not call its step hooks: call outer.after_inner_step(samples) after each"
            " step"
        )
    return hooked


def check_samples(samples: object) -> None:
    """Check that `samples` is a positive whole number. Raises UserError otherwise."""
    if not isinstance(samples, Integral) or isinstance(samples, bool) or int(samples) < 1:
        raise UserError(f"samples={samples!r} must be a positive whole number: pass the training samples per step")


def check_covered(optimizers: Sequence[Optimizer], outer: StepHooks) -> None:
    """Check that the optimizers train all trainable parameters. Raises UserError that names the first missing one."""
    trained = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    kind = " and ".join(type(optimizer).__name__ for optimizer in optimizers)
    for name, p in outer.island.params.items():
        if id(p) not in trained:
            raise UserError(
                f"{name} is trainable, but {kind} does not train it: pass it to the optimizer,"
                " or set requires_grad_(False) on it before the outer loop is made"
            )


def check_unshared(optimizers: Sequence[Optimizer], outer: StepHooks) -> None:
    """Check that no outer loop that is attached to one of the optimizers exchanges a parameter of `outer`.

    Raises UserError that names the first such parameter.
    """
    hooks = [hook for optimizer in optimizers for hook in optimizer._optimizer_step_post_hooks.values()]
    others = [hook.outer for hook in hooks if hasattr(hook, "outer")]
    exchanged = {id(p) for other in others for p in other.island.params.values()}
    for name, p in outer.island.params.items():
        if id(p) in exchanged:
            raise UserError(
                f"{name} is exchanged by another outer loop that is attached to this optimizer, and each would"
                " overwrite what the other writes: call remove() on the object that attach returned for it, or abort()"
                " on its callback"
            )


def warn_of_other_optimizer(optimizers: Sequence[Optimizer], outer: StepHooks) -> None:
    """Log a warning if the recipe expects an inner optimizer other than AdamW and the given one has another class.

    If several optimizers are given, nothing is checked.
    """
    wanted = getattr(outer, "inner_optimizer", "").rpartition(".")[2]
    kind = type(optimizers[0]).__name__
    if len(optimizers) == 1 and wanted not in ("", "AdamW", kind):
        recipe = getattr(outer, "recipe", "")
        logger.warning(
            "recipe=%s expects the inner optimizer %s, but got %s: use outerloop.recipe_optimizer(%r, model)",
            recipe,
            wanted,
            kind,
            recipe,
        )
