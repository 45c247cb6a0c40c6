"""Run one virtual worker of a simulation: its inner steps, its rounds, and its share of each evaluation."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from omegaconf import DictConfig
from torch.optim import Optimizer

from outerloop.config import build, instantiate, load
from outerloop.core.initial_state import exchange_positions, start_from_same_weights
from outerloop.core.replica_average import ALONE, average
from outerloop.core.round import RoundReport
from outerloop.exchange.inprocess import InProcess
from outerloop.inner.events import Event, round_fields, status_lines
from outerloop.inner.run_totals import RunTotals
from outerloop.inner.trainer import StepReport, pick_device
from outerloop.inner.worker_settings import is_due
from outerloop.protocols import OuterMethod
from outerloop.replica.island import Island
from outerloop.simulation.task import Batches, Task, count_samples
from outerloop.types import Tensors, UserError


class VirtualWorker:
    """A worker that trains one copy of the model. The worker's own thread constructs this object and calls `run`.

    `samples`: number of samples trained on so far. `own_optimizer`: the user's optimizer, or None to use the recipe's.

    Args:
        task, settings: task and settings of the run, equal for all workers.
        exchange: exchange of this worker; `exchange.join` has already been called.
        emit: function called with each event.
        compute: compute(work, *args) runs work(*args) in the single compute thread that all workers share.
    """

    def __init__(
        self,
        task: Task,
        settings: DictConfig,
        exchange: InProcess,
        *,
        emit: Callable[[Event], None],
        compute: Callable[..., Any],
    ) -> None:
        self.task, self.settings, self.exchange = task, settings, exchange
        self.emit_event, self.compute = emit, compute
        self.own_optimizer: Optimizer | None = None
        torch.manual_seed(settings.seed)
        self.model = task.create_model().to(pick_device(settings.inner.device, 0))
        island = Island(self.model, state_device=build.state_device(settings), compute=compute)
        self.outer = build.make_outer_loop(
            settings, self.model, exchange, rounds=settings.rounds, island=island, method=self.make_method()
        )
        self.params = list(island.params.values())
        self.optimizer = self.make_optimizer()
        self.peak_lr = [group["lr"] for group in self.optimizer.param_groups] if self.optimizer else []
        self.lr_factor = build.make_lr_factor(settings, self.outer.schedule)
        torch.manual_seed(settings.seed + 1 + exchange.rank)
        self.batches = Batches(task.batches(exchange.rank), worker=exchange.rank, device=self.params[0].device)
        self.validation = self.own_validation()
        self.samples, self.totals = 0, RunTotals(exchange, ALONE)

    def make_optimizer(self) -> Optimizer | None:
        """Return the user's or the recipe's inner optimizer, or None if the method exchanges gradients."""
        if load.inner_optimizer(self.settings) is None:
            return None
        if self.task.optimizer is not None:
            return self.create_optimizer(self.params)
        return build.make_optimizer_factory(self.settings)(list(self.outer.island.params.items()))

    def make_method(self) -> OuterMethod | None:
        """Return the recipe's outer method with the user's optimizer, or None to use the method unchanged.

        Return None if the user passed no optimizer, or if the method does not exchange gradients. Raises UserError if a
        method that exchanges gradients has no optimizer to replace.
        """
        settings = self.settings
        if self.task.optimizer is None or settings.method.get("reads") != "gradients":
            return None
        if "optimizer" not in settings.method:
            raise UserError(
                f"recipe={settings.recipe} updates the weights itself, without an optimizer that can be replaced: leave"
                " out optimizer=, and set options={'inner.lr': 1e-3}"
            )
        return instantiate.make(
            settings.method,
            optimizer=lambda named: self.create_optimizer([x for _, x in named]),
            lr_factor=None,
            clip_norm=None,
        )

    def create_optimizer(self, params: list[Any]) -> Optimizer:
        """Create the user's optimizer for these parameters, and keep it as `own_optimizer`.

        Raises UserError if the user's function returns another object.
        """
        assert self.task.optimizer is not None
        optimizer = self.task.optimizer(params)
        if not isinstance(optimizer, Optimizer):
            raise UserError(
                f"optimizer returned an object of type {type(optimizer).__name__}, not a torch.optim.Optimizer: return"
                " the optimizer that the function creates"
            )
        self.own_optimizer = optimizer
        return optimizer

    def own_validation(self) -> list[Any]:
        """Return this worker's share of the validation batches, or its first batch, held out, if none were given."""
        if self.task.validation is None:
            return [self.batches.hold_out()]
        share = self.task.validation[self.exchange.rank :: self.exchange.size]
        return [self.batches.to_device(batch) for batch in share]

    def run(self) -> None:
        """Train until the last round lands, then copy the final global weights into the model.

        Raises UserError, Stopped, ReplicasDiverged, or any error raised by the task's functions.
        """
        start_from_same_weights(self.outer, exchange_positions(self.outer), self.tell)
        for warning in self.outer.warnings:
            self.tell(f"note: {warning}")
        self.emit("ready", params=sum(p.numel() for p in self.params), size=self.exchange.size)
        self.evaluate(0)
        while self.outer.inner_step < self.outer.schedule.inner_steps(self.settings.rounds):
            self.exchange.hub.check_stop()
            report = self.step()
            self.totals.step_time.add(report)
            if self.outer.inner_step % self.settings.log_every == 0:
                self.emit("step", loss=report.loss, lr=report.lr, tokens=self.samples)
            for landed in report.rounds:
                self.after_round(landed)
        self.outer.replica.assign(self.evaluate(self.settings.rounds))
        slow_hash = f"{self.outer.slow_hash:016x}"
        self.emit("done", slow_hash=slow_hash, peer=self.exchange.peer, **self.totals.counters())

    def step(self) -> StepReport:
        """Take one inner step, then launch (send) and land (apply) the rounds that are due after it."""
        start_s = time.perf_counter()
        for p in self.params:
            p.grad = None
        batch = self.batches.next()
        samples = count_samples(batch)
        loss, lr = self.compute(self.train_on, batch)
        self.samples += samples
        compute_s = time.perf_counter() - start_s
        rounds = self.outer.after_inner_step(samples)
        return StepReport(loss, samples, lr, rounds, compute_s, time.perf_counter() - start_s - compute_s)

    def train_on(self, batch: Any) -> tuple[float, float | None]:
        """Take one step of the inner optimizer. Return the loss before the step and the learning rate.

        Without an inner optimizer, only compute the gradients; the returned learning rate is None.
        """
        loss = self.task.mean_loss(self.model, batch)
        loss.backward()
        if self.optimizer is None:
            return float(loss.detach()), None
        if self.task.optimizer is None:
            self.follow_recipe(self.optimizer)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.detach()), float(self.optimizer.param_groups[0]["lr"])

    def follow_recipe(self, optimizer: Optimizer) -> None:
        """Clip the gradients and set the learning rate, as `outerloop train` does."""
        if self.settings.inner.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.params, self.settings.inner.clip_norm)
        factor = self.lr_factor(self.outer.inner_step)
        for group, peak in zip(optimizer.param_groups, self.peak_lr, strict=True):
            group["lr"] = peak * factor

    def after_round(self, report: RoundReport) -> None:
        """Record a landed round. After the last fragment of a round, evaluate if an evaluation is due."""
        for line in status_lines(report):
            self.tell(line)
        spent, counters = self.totals.add_round(report), self.totals.counters()
        self.emit("round", **round_fields(report, self.exchange, spent=spent, counters=counters))
        done, is_last_fragment = report.round.number + 1, report.round.fragment == self.outer.schedule.fragments - 1
        if is_last_fragment and done < self.settings.rounds and is_due(done, self.settings.eval.every):
            self.evaluate(done)

    def evaluate(self, round_number: int) -> Tensors:
        """Evaluate the global model on this worker's share of the validation batches. Return the model's weights.

        The global model consists of the slow weights, or of their mean over all workers if they differ.
        """
        replicas: dict[str, Any] = {}
        weights = self.outer.slow
        if not self.outer.shared:
            averaged = average(self.outer)
            weights, replicas = averaged.mean, {"spread": averaged.spread, "replicas": len(averaged.peers)}
        self.outer.before_update()
        with self.outer.temporary_weights(weights):
            total, samples = self.compute(self.validation_loss)
        self.emit("eval", round=round_number, nats=total, predicted=samples, tokens=self.samples, **replicas)
        return weights

    @torch.no_grad()
    def validation_loss(self) -> tuple[float, int]:
        """Return the total loss over this worker's validation samples, and the number of these samples."""
        self.model.eval()
        counts = [count_samples(batch) for batch in self.validation]
        losses = [float(self.task.mean_loss(self.model, batch)) for batch in self.validation]
        self.model.train()
        return sum(loss * count for loss, count in zip(losses, counts, strict=True)), sum(counts)

    def tell(self, text: str) -> None:
        """Emit a status line about the whole run if this is the first worker."""
        if self.exchange.rank == 0:
            self.emit("status", text=text)

    def emit(self, event: str, **fields: Any) -> None:
        """Emit one event, with this worker's rank and its inner step."""
        self.emit_event({"event": event, "worker": self.exchange.rank, "step": self.outer.inner_step, **fields})
