"""Run a non-leader rank of a gathered island. It follows the commands of the leader, which holds all outer state.

leader's command   action of this rank
gather, scatter    sends or receives its shards (gathered.py)
step, evaluate     computes together with the other ranks, on its part of the batch
save, load         saves or loads its shards of the model and inner optimizer; a load command includes the data position
leave              stops following commands
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor
from torch.nn import Module

from outerloop.inner.trainer import Trainer
from outerloop.inner.worker_checkpoint import load_inner, save
from outerloop.inner.worker_settings import WorkerSettings
from outerloop.protocols import Schedule
from outerloop.replica.gathered import Follower, Gathered
from outerloop.types import Tensors


class GatheredFollower:
    """Stands in for the outer loop on a non-leader rank. It knows the current inner step, but has no outer state."""

    trial_state = None
    spare_bytes = 0
    last_landed = None
    is_attached = notifies_updates = False

    def __init__(self, model: Module, island: Gathered, schedule: Schedule) -> None:
        self.model, self.island, self.schedule = model, island, schedule
        self.inner_step, self.slow = 0, Tensors()

    def before_update(self) -> float:
        """Return 0 seconds of waiting, because nothing reads the weights in the background."""
        return 0.0

    def after_inner_step(self, samples: int) -> list[Any]:
        """Return no reports, because only the leader runs rounds."""
        return []

    def temporary_weights(self, weights: Tensors) -> AbstractContextManager[None]:
        """Do nothing, because the leader replaces the weights of all ranks."""
        return nullcontext()

    def evolved(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Do nothing, because `state` is empty."""


def follow(outer: GatheredFollower, trainer: Trainer, validation: Tensor, settings: WorkerSettings) -> None:
    """Execute the leader's commands until it sends "leave". Raises UserError or LeaderFailed if the leader fails."""
    follower = Follower(outer.island, outer.model)
    while (command := follower.recv_command())["do"] != "leave":
        if command["do"] == "step":
            outer.inner_step = command["inner_step"]
            trainer.step()
        elif command["do"] == "evaluate":
            trainer.nats(validation, settings.eval_batch)
        elif command["do"] == "save":
            save(trainer, {}, run_dir=settings.run_dir, step=command["step"], worker=settings.index, slow_hash="")
        elif command["do"] == "load":
            load_inner(
                trainer, command["position"], run_dir=settings.run_dir, step=command["step"], worker=settings.index
            )
