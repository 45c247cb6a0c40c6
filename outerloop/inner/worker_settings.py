"""Settings of one worker: when it evaluates, saves, logs and gives up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of one worker: when it evaluates, saves, logs and gives up.

    index: this worker's index on this machine.
    eval_every, checkpoint_every: number of rounds between two evaluations or checkpoints; 0: only at the end.
    eval_batch: number of windows per evaluation batch.
    export_every: number of rounds between two exports of the model during training; 0: none.
    log_every: number of inner steps between two step events.
    keep_payload_rounds: number of recent rounds for which this worker's payloads are kept on disk.
    max_failed_rounds: number of failed rounds in a row after which the worker gives up.
    """

    index: int
    run_dir: Path
    rounds: int
    eval_every: int
    eval_batch: int
    checkpoint_every: int
    export_every: int
    keep_payload_rounds: int
    log_every: int
    max_failed_rounds: int

    def evaluates_after(self, done: int, *, shared: bool) -> bool:
        """Return whether to evaluate after `done` rounds.

        After the last round, this is False if replicas differ by design (not `shared`): `GlobalEvaluation.adopt_mean`
        evaluates their mean instead.
        """
        return shared if done == self.rounds else done < self.rounds and is_due(done, self.eval_every)

    def saves_after(self, done: int) -> bool:
        """Return whether to save a checkpoint after `done` rounds."""
        return done == self.rounds or is_due(done, self.checkpoint_every)


def is_due(done: int, every: int) -> bool:
    """Return whether an action that repeats every `every` rounds (0: never) is due after `done` rounds."""
    return every > 0 and done % every == 0
