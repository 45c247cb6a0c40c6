"""Evaluate the global model on one worker's share of the validation windows.

The global model consists of the weights that all peers share. If replicas differ by design, it is their mean.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from outerloop.core.outer_loop import OuterLoop
from outerloop.core.replica_average import average
from outerloop.inner.trainer import Trainer
from outerloop.inner.worker_settings import WorkerSettings
from outerloop.protocols import Exchange
from outerloop.replica.rank_group import RankGroup
from outerloop.types import Tensors


class GlobalEvaluation:
    """Evaluates the global model, and emits eval events.

    `last_round` is the round number of the last evaluation in this process, or -1 before the first.

    Args:
        settings: settings of the worker.
        trainer: the inner trainer of the worker.
        outer: the trainer's outer loop.
        exchange: the outer loop's exchange.
        lanes: the ranks that hold different parts of the replica.
        validation: the worker's share of the validation windows, (n, seq_len + 1) int64.
        emit: emits an event, from its name and its fields.
        emit_from_first_worker: emits a status line about the whole run.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        trainer: Trainer,
        outer: OuterLoop,
        exchange: Exchange,
        lanes: RankGroup,
        validation: Tensor,
        emit: Callable[..., None],
        emit_from_first_worker: Callable[[str], None],
    ) -> None:
        self.settings, self.trainer, self.outer, self.exchange = settings, trainer, outer, exchange
        self.lanes, self.validation = lanes, validation
        self.emit, self.emit_from_first_worker = emit, emit_from_first_worker
        self.last_round = -1

    def evaluate(self, *, round_number: int) -> None:
        """Evaluate the global model on the worker's share of the validation set, and emit the total loss in nats.

        If replicas differ by design, the global model is their mean, and `spread` states how far apart they are. If
        peers do not run in lockstep, the mean is computed only at the end, and each worker evaluates its own replica
        here.
        """
        if self.outer.shared or not self.exchange.info.lockstep:
            self.emit_result(round_number, self.outer.slow)
        else:
            averaged = average(self.outer, self.lanes)
            self.emit_result(round_number, averaged.mean, spread=averaged.spread, replicas=len(averaged.peers))

    def adopt_mean(self) -> None:
        """Make the mean of all usable replicas (core/replica_average.py) the worker's final model, and evaluate it."""
        averaged = average(self.outer, self.lanes)
        self.outer.replica.assign(averaged.mean)
        for reason in averaged.refused.values():
            self.emit_from_first_worker(f"left out, {reason}")
        for peer, part in averaged.shortened.items():
            self.emit_from_first_worker(
                f"{peer}: its distance from this replica is scaled by {part:.2g}, because it is farther away"
                " than partners usually are"
            )
        replicas, size = len(averaged.peers), self.exchange.size
        self.emit_from_first_worker(
            f"the model is the mean of {replicas} of {size} replicas; their spread is {averaged.spread:.2g}"
        )
        self.emit_result(self.settings.rounds, averaged.mean, spread=averaged.spread, replicas=replicas)

    def emit_result(self, round_number: int, weights: Tensors, **replicas: float) -> None:
        """Evaluate `weights` on the worker's share of the validation set, and emit an eval event."""
        nats = self.trainer.evaluate(self.validation, weights, batch=self.settings.eval_batch)
        tokens = self.validation[:, 1:].numel() * self.trainer.ranks.size
        self.last_round = round_number
        self.emit("eval", round=round_number, nats=nats, predicted=tokens, tokens=self.trainer.tokens, **replicas)
