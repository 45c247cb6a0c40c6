"""The outer loop in anybody's training loop: every step that an optimizer takes counts as an inner step.

    outer = outerloop.from_recipe("sparseloco", model, "exchange.peers=4")
    outerloop.attach(optimizer, outer)

Gradient accumulation needs nothing: several backward passes, one step. A step that GradScaler leaves out is not taken,
and not counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

from outerloop.core.loop import OuterLoop
from outerloop.core.round import RoundReport
from outerloop.replica.gathered import Follower
from outerloop.types import UserError

logger = logging.getLogger(__name__)


class Attached:
    """A hook on `optimizer.step`, until `remove` or the end of a `with` block.

    Args:
        optimizer: of all trainable parameters of the model that `outer` was made for, and of others if need be;
            also as `accelerator.prepare` returns it.
        outer: told of every step; its rounds launch and land inside `optimizer.step`. A Follower takes part in them.
        samples: training samples (sequences) that a step stands for; they weigh in a sample-weighted mean only.
        on_round: told of every round that landed or failed.
        sole_writer: nothing but this optimizer changes the weights from one of its steps to the next (no averaged
            weights in their place to evaluate with, say), so that a launch with delay can be copied meanwhile; else
            the step that it comes after takes as long as that copy.

    Raises:
        UserError: when the optimizer does not train a parameter that the model would exchange, or the model has got one
            since `outer` was made.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        outer: OuterLoop | Follower,
        *,
        samples: int = 1,
        on_round: Callable[[RoundReport], None] | None = None,
        sole_writer: bool = False,
    ) -> None:
        optimizer = with_hooks(optimizer)
        outer.island.check_whole()
        check_covered(optimizer, outer)
        self.outer, self.samples, self.on_round = outer, samples, on_round
        outer.announced = sole_writer
        self.handles = [optimizer.register_step_post_hook(self._stepped)]
        if sole_writer:
            self.handles.append(optimizer.register_step_pre_hook(self._to_step))

    def _to_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.outer.before_update()

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for report in self.outer.after_inner_step(self.samples):
            if report.failed:
                logger.warning("round %d did not complete: %s", report.round.number, report.failed)
            for note in report.notes:
                logger.info("round %d: %s", report.round.number, note)
            if self.on_round is not None:
                self.on_round(report)

    def remove(self) -> None:
        """The optimizer is as it was; the outer loop stays where it is."""
        self.outer.before_update()
        self.outer.announced = False
        for handle in self.handles:
            handle.remove()

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def with_hooks(optimizer: Any) -> Optimizer:
    """Return the optimizer that takes the steps.

    Accelerate's wrapper has no hooks; it calls the step of the optimizer inside it when gradients are complete.
    """
    return optimizer if hasattr(optimizer, "_optimizer_step_post_hooks") else optimizer.optimizer


def check_covered(optimizer: Optimizer, outer: OuterLoop | Follower) -> None:
    """Raises UserError naming the first trainable parameter that is not the optimizer's."""
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, p in outer.island.params.items():
        if id(p) not in trained:
            raise UserError(
                f"{name} is trainable, and {type(optimizer).__name__} does not train it: give it to the optimizer,"
                " or set requires_grad_(False) on it before the outer loop is made"
            )


def refuse_many(processes: int) -> None:
    """Raises UserError where a Trainer averages gradients over processes, each of which would be a peer."""
    if processes > 1:
        raise UserError(
            f"this Trainer has {processes} processes, and the callback is of one: start one process a peer, or give"
            " outerloop.from_recipe the DDP model in a training loop of your own"
        )
