"""The outer loop in the Trainer of Hugging Face transformers, one process a peer.

    trainer = Trainer(model, args, train_dataset=data)
    make = lambda model, state: outerloop.from_recipe("sparseloco", model, "exchange.peers=2", state=state)
    trainer.add_callback(outerloop.HFCallback(trainer, make))
    trainer.train()

Rounds go to whatever the Trainer reports to, under the names of `rounds.CHARTS`. Every checkpoint folder gets one file
more, and `train(resume_from_checkpoint=True)` goes on from it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.nn import Module
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from outerloop.core.loop import OuterLoop
from outerloop.core.round import RoundReport
from outerloop.inner.attach import Attached, refuse_many
from outerloop.state import checkpoint
from outerloop.types import UserError


class HFCallback(TrainerCallback):
    """`outer` is the outer loop, from the first step on.

    Args:
        trainer: the one that this becomes a callback of.
        make: (model on its device, what `outer.state_dict()` was at the checkpoint or None at the start) -> outer loop,
            joined to its exchange.
    """

    outer: OuterLoop
    attached: Attached

    def __init__(self, trainer: Trainer, make: Callable[[Module, dict[str, Any] | None], OuterLoop]) -> None:
        self.trainer, self.make = trainer, make
        self.rounds: list[RoundReport] = []

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Make the outer loop and attach it to the optimizer.

        Raises UserError when training goes on from a checkpoint that holds no outer loop, for a Trainer of several
        processes, and for an optimizer that does not train the whole model; the run is left then.
        """
        refuse_many(args.world_size)
        self.outer = self.make(kwargs["model"], saved(args, state) if state.global_step else None)
        samples = args.train_batch_size * args.gradient_accumulation_steps
        try:
            self.attached = Attached(kwargs["optimizer"], self.outer, samples=samples, on_round=self.rounds.append)
        except UserError:
            self.outer.exchange.abort()
            raise

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Log the rounds that this step landed."""
        due = control.should_log  # logging puts it out, and the loss of this step may be still to come
        for report in self.rounds:
            self.trainer.log(report.charts(bytes_sent=self.outer.exchange.bytes_sent))
        self.rounds.clear()
        control.should_log = due

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Put the outer loop into the checkpoint that was just written."""
        checkpoint.write_atomically(file_of(args, state), checkpoint.packed(self.outer.state_dict()))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave the run, when the others have what they need."""
        self.attached.remove()
        self.outer.exchange.close()


def file_of(args: TrainingArguments, state: TrainerState) -> Path:
    """The file of the outer loop in the checkpoint of the current step."""
    return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}" / "outerloop.pt"


def saved(args: TrainingArguments, state: TrainerState) -> dict[str, Any]:
    """The outer loop's state at the checkpoint that training goes on from. Raises UserError when it is not there."""
    file = file_of(args, state)
    if not file.exists():
        raise UserError(
            f"training goes on from step {state.global_step}, and {file} is not there: type output_dir= with the folder"
            " of the checkpoint, or start without resume_from_checkpoint"
        )
    return checkpoint.read(file)
