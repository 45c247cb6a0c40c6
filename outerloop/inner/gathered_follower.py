"""A rank of a gathered island that does not lead: it trains and evaluates as the leader says, and holds no outer state.

leader's order     this rank
gather, scatter    lends its shards (gathered.py)
step, evaluate     computes with the others, on its part of the batch
save, load         its shards of the model and the inner optimizer; where to go on in the data comes with the order
leave              is done
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import Module

from outerloop.inner.trainer import Trainer
from outerloop.inner.worker import Plan
from outerloop.inner.worker_checkpoint import load_inner, save
from outerloop.protocols import Schedule
from outerloop.replica.gathered import Follower, Gathered
from outerloop.types import Tensors


class GatheredFollower:
    """What such a rank has in place of an outer loop: it knows where the run stands, and holds nothing."""

    residual_share = momentum_share = 0.0
    spare_bytes = 0
    announced = False

    def __init__(self, model: Module, island: Gathered, schedule: Schedule) -> None:
        self.model, self.island, self.schedule = model, island, schedule
        self.inner_step, self.slow = 0, Tensors()

    def before_update(self) -> float:
        """Nothing reads the weights meanwhile."""
        return 0.0

    def after_inner_step(self, samples: int) -> list[Any]:
        """The leader's affair."""
        return []

    def evolved(self) -> dict[str, Any]:
        """Nothing."""
        return {}


def follow(trainer: Trainer, validation: Tensor, plan: Plan) -> None:
    """Until the leader's run has come to its end. Raises UserError and LeaderFailed, as the leader did."""
    island: Any = trainer.outer.island
    follower = Follower(island)
    while (order := follower.hear())["do"] != "leave":
        if order["do"] == "step":
            trainer.outer.inner_step = order["inner_step"]
            trainer.step()
        elif order["do"] == "evaluate":
            trainer.nats(validation, plan.eval_batch)
        elif order["do"] == "save":
            save(trainer, {}, run_dir=plan.run_dir, step=order["step"], worker=plan.index)
        elif order["do"] == "load":
            load_inner(trainer, order["position"], run_dir=plan.run_dir, step=order["step"], worker=plan.index)
