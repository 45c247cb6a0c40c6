"""Callback for the Lightning Trainer that runs the outer loop. A peer is one process.

    make = lambda module, state: outerloop.from_recipe("sparseloco", module, "exchange.peers=2", state=state)
    Trainer(callbacks=[outerloop.LightningCallback(make)], max_steps=3000).fit(module, data)

Rounds are logged to the Trainer's loggers, under the names in `round.CHARTS`. Checkpoints include the outer loop, and
`fit(ckpt_path=...)` resumes from it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.nn import Module

from outerloop.core.outer_loop import OuterLoop
from outerloop.core.round import RoundReport
from outerloop.exchange_protocols import metered
from outerloop.inner.attach import Attached, refuse_multiple_processes


class LightningCallback(Callback):
    """A Trainer callback that creates the outer loop when training starts, as `outer`, and attaches it.

    Args:
        make: (module on its device, `outer.state_dict()` saved at the checkpoint, or None at the start) -> outer
            loop, joined to its exchange.
        samples: training samples per optimizer step; used only as the weight in a sample-weighted mean.
    """

    def __init__(self, make: Callable[[Module, dict[str, Any] | None], OuterLoop], *, samples: int = 1) -> None:
        self.make, self.samples = make, samples
        self.outer: OuterLoop | None = None
        self.restored: dict[str, Any] | None = None
        self.rounds: list[RoundReport] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the outer loop and attach it to the optimizer.

        Raises UserError if the Trainer has several processes, or the optimizer does not train the whole module.
        """
        refuse_multiple_processes(trainer.world_size)
        self.outer, self.restored = self.make(pl_module, self.restored), None  # another `fit` starts fresh
        self.attached = Attached(trainer.optimizers[0], self.outer, samples=self.samples, on_round=self.rounds.append)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the rounds that the step of this batch landed."""
        assert self.outer is not None
        for report in self.rounds:
            charts = report.charts(bytes_sent=metered(self.outer.exchange).bytes_sent)
            for logger in trainer.loggers:
                logger.log_metrics(charts, step=trainer.global_step)
        self.rounds.clear()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the run once the other peers have what they need."""
        assert self.outer is not None
        self.attached.remove()
        self.outer.exchange.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Leave the run at once."""
        if self.outer is not None:
            self.outer.exchange.abort()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the outer loop for a checkpoint; empty before training starts."""
        return self.outer.state_dict() if self.outer is not None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Store the state from which the outer loop resumes when training starts."""
        self.restored = state_dict
