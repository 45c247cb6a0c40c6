"""Run the outer loop as a callback in the Lightning Trainer.

    Trainer(callbacks=[LightningCallback("sparseloco", peers=2, sync_every=30)], max_steps=3000).fit(module, data)

The processes of a Trainer with DDP form one peer. Only the first process exchanges data with other peers.
Rounds are logged to the Trainer's loggers, under the names in `round.CHARTS`. Checkpoints include the state of the
outer loop, which `fit(ckpt_path=...)` restores.

A peer that missed rounds, or joined late, does not train for these rounds, but `OuterLoop.inner_step` counts their
steps. All peers stop at the same `inner_step`, so this peer has then trained for fewer steps than the others. A step
that GradScaler skips (precision="16-mixed") counts as an inner step without progress.
"""

from __future__ import annotations

import math
from typing import Any, Unpack

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from outerloop.config.from_recipe import RecipeArguments
from outerloop.core.outer_loop import OuterLoop
from outerloop.core.round import RoundReport
from outerloop.inner.attach import Attached
from outerloop.integrations.outer_loop_factory import has_skipped_to_end, outer_loop_factory, refuse_sharded
from outerloop.integrations.run_traffic import RunTraffic
from outerloop.types import UserError


class LightningCallback(Callback):
    """A Trainer callback that creates the outer loop when training starts, stores it as `outer` and attaches it.

    Args:
        recipe, overrides, arguments: as for `from_recipe`: LightningCallback("sparseloco", "compress=int8", peers=2).
        samples: total number of training samples per optimizer step, over all processes. It is only used as the weight
            of this peer in a sample-weighted mean.
    """

    def __init__(self, recipe: str, *overrides: str, samples: int = 1, **arguments: Unpack[RecipeArguments]) -> None:
        self.make, self.samples = outer_loop_factory(recipe, overrides, arguments), samples
        self.outer: OuterLoop | None = None
        self.attached: Attached | None = None
        self.restored: dict[str, Any] | None = None
        self.rounds: list[RoundReport] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Create the outer loop and attach it to the optimizer.

        Raises UserError if training resumes from a checkpoint that contains no outer loop, if the Trainer shards the
        module, if it has several optimizers, or if the optimizer does not train the whole module.
        """
        model = module_or_copies(trainer, pl_module)
        if (number := len(trainer.optimizers)) > 1:
            raise UserError(
                f"the module has {number} optimizers, and the Trainer counts the steps of all of them as global steps:"
                " give one optimizer all parameters, or call outerloop.from_recipe and outerloop.attach in your own"
                " training loop, which accept a list of optimizers"
            )
        if trainer.ckpt_path and trainer.global_step and not self.restored:
            raise UserError(
                f"training resumes from step {trainer.global_step}, but {trainer.ckpt_path} contains no outer loop: use"
                " a checkpoint of a run with LightningCallback, or start without ckpt_path="
            )
        self.steps, self.first_step = optimizer_steps(trainer), trainer.global_step
        self.outer = self.make(model, self.restored, None, self.steps)
        self.traffic = RunTraffic(self.outer.exchange, self.restored)
        self.restored = None  # a later `fit` starts from scratch
        self.attached = Attached(trainer.optimizers[0], self.outer, samples=self.samples, on_round=self.rounds.append)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the rounds that were applied after this batch's step.

        Count the step if GradScaler skipped it. End the training if this was the last inner step of the run.
        """
        assert self.outer is not None and self.attached is not None
        self.attached.count_up_to(trainer.global_step - self.first_step)
        for report in self.rounds:
            charts = report.charts(bytes_sent=self.traffic.bytes_sent)
            for logger in trainer.loggers:
                logger.log_metrics(charts, step=trainer.global_step)
        self.rounds.clear()
        if has_skipped_to_end(self.outer, taken=trainer.global_step, steps=self.steps):
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the run once the other peers have received the data that they need from this peer."""
        assert self.outer is not None and self.attached is not None
        self.attached.remove()
        self.outer.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the run immediately if the Trainer fails, and detach the outer loop from the optimizer."""
        self.restored = None
        self.rounds.clear()
        try:
            if self.attached is not None:
                self.attached.remove()
        finally:
            if self.outer is not None:
                self.outer.abort()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the outer loop, and the bytes sent, for a checkpoint; empty before training starts."""
        return self.outer.state_dict() | self.traffic.state_dict() if self.outer is not None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Store the state `state_dict`. The outer loop resumes from it when training starts."""
        self.restored = state_dict or None  # empty if it was saved before training started


def optimizer_steps(trainer: Trainer) -> int | None:
    """Return the number of optimizer steps after which the Trainer stops, or None if nothing limits it."""
    steps = trainer.estimated_stepping_batches
    return int(steps) if 0 <= steps < math.inf else None


def module_or_copies(trainer: Trainer, module: LightningModule) -> Module:
    """Return the module, or its DDP wrapper if several processes hold copies of it.

    Raises UserError if the processes hold shards of the module.
    """
    if trainer.world_size == 1:
        return module
    if not isinstance(trainer.model, DistributedDataParallel):
        raise refuse_sharded(trainer.world_size)
    return trainer.model
