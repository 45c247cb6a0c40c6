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


class GatheredFollower(Follower):
    """A Follower that is trained by a `Trainer`, whose inner steps are commands of the leader as well (`follow`)."""

    last_landed = None

    def __init__(self, island: Gathered, model: Module, schedule: Schedule) -> None:
        super().__init__(island, model)
        self.schedule = schedule

    def after_inner_step(self, samples: int) -> list[Any]:
        """Return an empty list, because `follow` counts inner steps and executes all commands."""
        return []

    def temporary_weights(self, weights: Tensors) -> AbstractContextManager[None]:
        """Do nothing, because the leader replaces the weights of all ranks."""
        return nullcontext()

    def evolved(self) -> dict[str, Any]:
        """Return the inner step, as `state_dict` does."""
        return self.state_dict()


def follow(outer: GatheredFollower, trainer: Trainer, validation: Tensor, settings: WorkerSettings) -> None:
    """Execute the leader's commands until it sends "leave". Raises UserError or LeaderFailed if the leader fails."""
    while (command := outer.recv_command())["do"] != "leave":
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
