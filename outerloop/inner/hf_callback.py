"""Callback for the Hugging Face transformers Trainer that runs the outer loop. A peer is one process.

    trainer = Trainer(model, args, train_dataset=data)
    make = lambda model, state: outerloop.from_recipe("sparseloco", model, "exchange.peers=2", state=state)
    trainer.add_callback(outerloop.HFCallback(trainer, make))
    trainer.train()

Rounds are logged to the Trainer's reporting targets, under the names in `round.CHARTS`. The callback adds one file to
every checkpoint folder, and `train(resume_from_checkpoint=True)` resumes from it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.nn import Module
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from outerloop.core.outer_loop import OuterLoop
from outerloop.core.round import RoundReport
from outerloop.exchange_protocols import metered
from outerloop.inner.attach import Attached, refuse_multiple_processes
from outerloop.state import checkpoint
from outerloop.types import UserError


class HFCallback(TrainerCallback):
    """A Trainer callback that creates the outer loop when training begins, as `outer`, and attaches it.

    Args:
        trainer: the Trainer that this callback is added to.
        make: (model on its device, `outer.state_dict()` saved at the checkpoint, or None at the start) -> outer loop,
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

        Raises UserError if training resumes from a checkpoint without an outer loop, if the Trainer has several
        processes, or if the optimizer does not train the whole model. In the last case this peer leaves the run.
        """
        refuse_multiple_processes(args.world_size)
        self.outer = self.make(kwargs["model"], saved_outer_state(args, state) if state.global_step else None)
        samples = args.train_batch_size * args.gradient_accumulation_steps
        try:
            self.attached = Attached(kwargs["optimizer"], self.outer, samples=samples, on_round=self.rounds.append)
        except UserError:
            self.outer.exchange.abort()
            raise

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Log the rounds that this step landed."""
        due = control.should_log  # trainer.log may reset it before this step's loss is logged
        for report in self.rounds:
            self.trainer.log(report.charts(bytes_sent=metered(self.outer.exchange).bytes_sent))
        self.rounds.clear()
        control.should_log = due

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Add the state of the outer loop to the checkpoint that was just written."""
        checkpoint.write_atomically(outer_state_file(args, state), checkpoint.pack(self.outer.state_dict()))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave the run once the other peers have what they need."""
        self.attached.remove()
        self.outer.exchange.close()


def outer_state_file(args: TrainingArguments, state: TrainerState) -> Path:
    """Return the path of the outer loop's file in the checkpoint of the current step."""
    return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}" / "outerloop.pt"


def saved_outer_state(args: TrainingArguments, state: TrainerState) -> dict[str, Any]:
    """Return the outer loop's state in the checkpoint that training resumes from. Raises UserError if it is missing."""
    file = outer_state_file(args, state)
    if not file.exists():
        raise UserError(
            f"training resumes from step {state.global_step}, but {file} does not exist: set output_dir= to the folder"
            " of the checkpoints, or start without resume_from_checkpoint"
        )
    return checkpoint.read(file)
