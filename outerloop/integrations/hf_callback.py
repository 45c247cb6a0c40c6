"""Run the outer loop as a callback in the Hugging Face transformers Trainer.

    Trainer(model, args, train_dataset=data, callbacks=[HFCallback("sparseloco", peers=2, sync_every=30)]).train()

The processes that torchrun starts for one Trainer form one peer. Only the first process exchanges data with other
peers. Rounds are recorded in `trainer.state.log_history`, under the names in `round.CHARTS`. The callback adds a file
with the state of the outer loop to every checkpoint folder, and `train(resume_from_checkpoint=True)` restores that
state.

A peer that missed rounds, or joined late, does not train for these rounds, but `OuterLoop.inner_step` counts their
steps. All peers stop at the same `inner_step`, so this peer has then trained for fewer steps than the others. A step
that GradScaler skips (fp16=True) counts as an inner step without progress.

The Trainer does not tell its callbacks about errors. After an error, the peer stays in the run until training begins
again, `HFCallback.abort` is called or the process ends.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Unpack

from torch import distributed as dist
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from outerloop.config.from_recipe import RecipeArguments
from outerloop.core.outer_loop import OuterLoop
from outerloop.core.round import RoundReport
from outerloop.inner.attach import Attached
from outerloop.integrations.outer_loop_factory import has_skipped_to_end, outer_loop_factory, refuse_sharded
from outerloop.integrations.run_traffic import RunTraffic
from outerloop.replica.sharding import is_sharded
from outerloop.state import checkpoint
from outerloop.state.durable import sync_folder
from outerloop.types import UserError

STAGED = "_outerloop-step-"
"""Start of the name of a staged file. The Trainer does not upload files whose names start with an underscore."""


class HFCallback(TrainerCallback):
    """A Trainer callback that creates the outer loop when training begins, stores it as `outer` and attaches it.

    Args:
        recipe, overrides, arguments: as for `from_recipe`, e.g. HFCallback("sparseloco", "compress=int8", peers=2).
        trainer: the Trainer to which this callback is added with `add_callback`. If given, rounds are also logged to
            its reporting targets (wandb, TensorBoard).
    """

    outer: OuterLoop
    attached: Attached | None = None

    def __init__(
        self, recipe: str, *overrides: str, trainer: Trainer | None = None, **arguments: Unpack[RecipeArguments]
    ) -> None:
        self.make, self.trainer = outer_loop_factory(recipe, overrides, arguments), trainer
        self.rounds: list[RoundReport] = []
        self.saved_step = -1

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Create the outer loop and attach it to the optimizer. If an earlier training failed, leave its run first.

        Raises UserError if training resumes from a checkpoint that contains no outer loop, if the Trainer shards the
        model, or if the optimizer does not train the whole model. In the last case, this peer leaves the run.
        """
        model, processes = kwargs["model"], args.world_size
        if processes > 1 and (args.fsdp or args.deepspeed or is_sharded(model)):
            raise refuse_sharded(processes)
        self.abort()
        saved = saved_outer_state(args, state) if state.global_step else None
        self.outer = self.make(model, saved, dist.group.WORLD if processes > 1 else None, state.max_steps)
        self.traffic = RunTraffic(self.outer.exchange, saved)
        self.saved_step, self.first_step = -1, state.global_step
        batch = (args.auto_find_batch_size and state.train_batch_size) or args.train_batch_size
        samples = processes * batch * args.gradient_accumulation_steps
        try:
            self.attached = Attached(kwargs["optimizer"], self.outer, samples=samples, on_round=self.rounds.append)
        except UserError:
            self.outer.abort()
            raise

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Log the rounds that were applied after this step, and save the outer loop if a checkpoint follows.

        Count the step if GradScaler skipped it. End the training if this was the last inner step of the run.
        """
        assert self.attached is not None
        self.attached.count_up_to(state.global_step - self.first_step)
        due = control.should_log  # trainer.log may reset should_log before this step's loss is logged
        for report in self.rounds:
            charts = report.charts(bytes_sent=self.traffic.bytes_sent)
            if self.trainer is not None:
                self.trainer.log(charts)
            else:
                state.log_history.append(charts | {"epoch": state.epoch, "step": state.global_step})
        self.rounds.clear()
        control.should_log = due
        if has_skipped_to_end(self.outer, taken=state.global_step, steps=state.max_steps):
            end_training(args, control)
        if control.should_save:
            self.save(args, state)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save the outer loop if a checkpoint follows."""
        if control.should_save:
            self.save(args, state)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Move the saved outer loop into the checkpoint, which the Trainer has now written."""
        self.save(args, state)
        if args.should_save:
            place_staged_files(Path(str(args.output_dir)), written=state.global_step)

    def on_push_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Move the saved outer loop into the checkpoint before the Trainer uploads it, which is before `on_save`."""
        self.on_save(args, state, control)

    def save(self, args: TrainingArguments, state: TrainerState) -> None:
        """Write the state of the outer loop, which is equal in all processes, to its staged file, unless done.

        The Trainer deletes older checkpoints before it calls `on_save`. So this is done before the Trainer writes the
        checkpoint, if the Trainer is known to write one: otherwise, a process that is killed in between could leave no
        checkpoint with an outer loop. The file is not in the folder of the checkpoint yet, because a Trainer that is
        killed while it evaluates before it saves would leave a folder without a model, from which it later resumes.
        """
        if args.should_save and self.saved_step != state.global_step:
            file = staged_file(args, state)
            file.parent.mkdir(parents=True, exist_ok=True)
            checkpoint.write_atomically(file, checkpoint.pack(self.outer.state_dict() | self.traffic.state_dict()))
        self.saved_step = state.global_step

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Leave the run once the other peers have received the data that they need from this peer."""
        assert self.attached is not None
        self.attached.remove()
        self.outer.close()

    def abort(self) -> None:
        """Leave the run immediately, and detach the outer loop from the optimizer. Does nothing after `on_train_end`.

        Call this after a training that failed, if the process continues.
        """
        self.rounds.clear()
        if self.attached is not None:
            try:
                self.attached.remove()
            finally:
                self.outer.abort()


def end_training(args: TrainingArguments, control: TrainerControl) -> None:
    """End the training after this step as the Trainer does after `max_steps`.

    It then evaluates and saves, if it does so by steps.
    """
    control.should_training_stop = True
    control.should_evaluate |= args.eval_strategy == IntervalStrategy.STEPS
    control.should_save |= args.save_strategy == SaveStrategy.STEPS


def outer_state_file(args: TrainingArguments, state: TrainerState) -> Path:
    """Return the path of the outer loop's file in the checkpoint of the current step."""
    return Path(str(args.output_dir)) / f"checkpoint-{state.global_step}" / "outerloop.pt"


def staged_file(args: TrainingArguments, state: TrainerState) -> Path:
    """Return where the state for the current step is stored until the Trainer has written the checkpoint."""
    return Path(str(args.output_dir)) / f"{STAGED}{state.global_step}.pt"


def place_staged_files(folder: Path, *, written: int) -> None:
    """Move each staged file to its checkpoint, or remove it if there is no such checkpoint, or one with an outer loop.

    `folder`: the Trainer's output_dir. `written`: step of the checkpoint that the Trainer has just written. Its staged
    file replaces an outer loop in the checkpoint, which an earlier run in the same folder has left there.
    """
    for staged in folder.glob(f"{STAGED}*.pt"):
        step = staged.stem.removeprefix(STAGED)
        place = folder / f"checkpoint-{step}"
        if place.is_dir() and (step == str(written) or not (place / "outerloop.pt").exists()):
            staged.replace(place / "outerloop.pt")
            sync_folder(place)
        else:
            staged.unlink()


def saved_outer_state(args: TrainingArguments, state: TrainerState) -> dict[str, Any]:
    """Load the outer loop's state from the checkpoint to resume from.

    Raises UserError if the checkpoint in `output_dir` has none, or if it is not the one that the Trainer has loaded.
    """
    inside, staged = outer_state_file(args, state), staged_file(args, state)
    if not (inside.exists() or staged.exists()):
        raise UserError(
            f"training resumes from step {state.global_step}, but {inside} does not exist: set output_dir= to the"
            " folder that contains the checkpoint, or start without resume_from_checkpoint"
        )
    if not has_history(inside.parent, state):
        raise UserError(
            f"training resumes from step {state.global_step}, but {inside.parent} is of another run: set output_dir= to"
            " the folder that contains the checkpoint from which training resumes"
        )
    return checkpoint.read(staged if is_newer(staged, inside) else inside)


def is_newer(staged: Path, inside: Path) -> bool:
    """Return whether the staged file belongs to the checkpoint, instead of the file inside the checkpoint.

    If both exist, the file inside is of an earlier run in the same folder, or the Trainer has not written this
    checkpoint since it was staged: the last file that the Trainer writes is older than the staged file then.
    """
    if not (staged.exists() and inside.exists()):
        return staged.exists()
    before, then, written = (file.stat().st_mtime_ns for file in (inside, staged, inside.with_name(TRAINER_STATE_NAME)))
    return before < then <= written


def has_history(folder: Path, state: TrainerState) -> bool:
    """Return whether a checkpoint contains the log history that the Trainer has loaded."""
    file = folder / TRAINER_STATE_NAME
    found = json.loads(file.read_text())["log_history"] if file.exists() else None
    return json.dumps(found, sort_keys=True) == json.dumps(state.log_history, sort_keys=True)
