"""Run one worker: resume, train, evaluate, save, deliver the final model, emit events.

All ranks of an island run this together; only the first rank emits events. Events are flat dictionaries with the keys
"event" (status, step, round, eval, saved, done), "worker" and "step". Field names include their units.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from outerloop import rng
from outerloop.core.final_check import ending_of
from outerloop.core.initial_state import begin_alike, meet
from outerloop.core.outer_loop import OuterLoop
from outerloop.core.replica_average import ALONE, average
from outerloop.core.round import SPENT, RoundReport, utilization
from outerloop.exchange_protocols import counters, late_joiner, metered, replicated
from outerloop.inner.step_time import StepTimeBudget
from outerloop.inner.trainer import StepReport, Trainer
from outerloop.inner.worker_checkpoint import keep_payload, load, save
from outerloop.protocols import Exchange
from outerloop.replica.rank_group import RankGroup
from outerloop.types import Outvoted, ReplicasDiverged, RoundFailed, Tensors

Event = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """The settings of one worker's run. `*_every` counts rounds (0: only at the end), `log_every` counts inner steps.

    `keep_payload_rounds`: number of recent rounds for which this worker's payloads are kept on disk.
    """

    index: int
    local_workers: int
    run_dir: Path
    rounds: int
    eval_every: int
    eval_batch: int
    checkpoint_every: int
    keep_payload_rounds: int
    log_every: int
    max_failed_rounds: int
    resume_step: int | None


class Worker:
    """Runs one trainer from its first inner step, or the one in its checkpoint, to the last.

    Args:
        plan: settings of this run.
        trainer: this worker's inner trainer.
        outer: the trainer's outer loop.
        exchange: the outer loop's exchange, already joined.
        validation: this worker's share of the validation windows, (n, seq_len + 1) int64.
        emit: called with each event.
        check_stop: raises Stopped if the run has to end early.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        trainer: Trainer,
        outer: OuterLoop,
        exchange: Exchange,
        validation: Tensor,
        emit: Callable[[Event], None],
        check_stop: Callable[[], None],
    ) -> None:
        self.plan, self.trainer, self.outer, self.exchange = plan, trainer, outer, exchange
        self.replicated, self.traffic = replicated(exchange), metered(exchange)
        self.validation, self.emit_event, self.check_stop = validation, emit, check_stop
        self.ranks = trainer.ranks
        self.lanes = trainer.ranks if outer.island.is_sharded else ALONE
        self.failed_in_a_row = 0
        self.to_be_saved = False
        self.divergence = ""
        self.spent = StepTimeBudget()
        self.base = {"bytes_sent": 0, "bytes_received": 0, "payload_bytes": 0, "wait_s": 0.0, "rounds_failed": 0}
        self.base |= dict.fromkeys(SPENT, 0.0)
        self.totals = dict(self.base)

    @property
    def step(self) -> int:
        """Number of inner steps done."""
        return self.outer.inner_step

    def run(self) -> None:
        """Run from the start or the checkpoint to the last round.

        Raises Stopped, RoundFailed after too many failed rounds in a row, QuorumLost, ReplicasDiverged, Outvoted, and
        UserError if the peers do not start from the same point.
        """
        if self.plan.resume_step is not None:
            self.resume(self.plan.resume_step)
        if late_joiner(self.exchange):
            self.outer.find_others()
        else:
            self.begin_together()
        if self.step == 0:
            self.evaluate(round_number=0)
        self.told = self.step
        while self.step < self.outer.schedule.inner_steps(self.plan.rounds):
            self.check_stop()
            report = self.inner_step()
            self.spent.add(report)
            self.tell_step(report)
            for landed in report.rounds:
                self.after_round(landed, now=landed is report.rounds[-1])
            self.save_when_due()
        self.finish()
        self.emit("done", slow_hash=f"{self.outer.slow_hash:016x}", peer=self.exchange.peer, **self.counters())

    def inner_step(self) -> StepReport:
        """Take one inner step and land the rounds that are due.

        Raises ReplicasDiverged, after saving the state, because it is not known yet which of the replicas is wrong. For
        an island of several ranks nothing is saved: saving is collective, and only the leader gets this error.
        """
        try:
            return self.trainer.step()
        except ReplicasDiverged:
            if self.ranks.size == 1:
                self.save()
            raise

    def finish(self) -> None:
        """Agree on the final model: the mean if replicas differ by design, else the majority's model (final_check.py).

        Raises Outvoted if this peer's model is not the majority's.
        """
        if not self.outer.shared:
            self.become_one()
            return
        ending = ending_of(self.outer)
        if ending.outvoted:
            raise Outvoted(ending.outvoted)
        for line in ending.odd:
            self.tell_once(line)
        self.divergence = ending.divergence

    def raise_if_diverged(self) -> None:
        """Raise ReplicasDiverged if no hash had a majority at the end. Call this after delivering the model."""
        if self.divergence:
            raise ReplicasDiverged(self.divergence)

    def become_one(self) -> None:
        """Make the mean of all compatible replicas this machine's final model, and evaluate it."""
        found = average(self.outer, self.lanes)
        self.outer.replica.assign(found.mean)
        for reason in found.refused.values():
            self.tell_once(f"left out, {reason}")
        for peer, part in found.shortened.items():
            self.tell_once(
                f"{peer}: only {part:.2g} of its distance counts, because it is farther away than partners usually are"
            )
        replicas, size = len(found.peers), self.exchange.size
        self.tell_once(f"the model is the mean of {replicas} of {size} replicas, their spread is {found.spread:.2g}")
        self.tell_validation(self.plan.rounds, found.mean, spread=found.spread, replicas=replicas)

    def begin_together(self) -> None:
        """Check that most peers start from the same point with equal weights (initial_state.py). Raises UserError.

        Without lockstep this check is skipped. A worker that took over weights from other peers saves them at once: it
        could not reproduce them if it were killed before its first checkpoint.
        """
        if self.exchange.info.lockstep and begin_alike(self.outer, meet(self.outer), self.tell_once):
            self.save()

    def tell_once(self, text: str) -> None:
        """Report a status line about the whole run; only worker 0 of each machine emits it."""
        if self.plan.index == 0:
            self.emit("status", text=text)

    def after_round(self, report: RoundReport, *, now: bool = True) -> None:
        """Record a round; after its last fragment has landed, evaluate and save if they are due.

        `now`: False if more rounds landed in the same step, because this peer had fallen behind. The weights are newer
        than the round then, so it is neither evaluated nor saved.
        """
        self.account(of_all_lanes(report, self.lanes) if self.lanes.size > 1 else report)
        if self.plan.keep_payload_rounds and report.blob and self.ranks.is_leader:
            folder = self.plan.run_dir / "workers" / str(self.plan.index) / "payloads"
            keep_payload(folder, report, rounds=self.plan.keep_payload_rounds)
        if report.round.fragment < self.outer.schedule.fragments - 1 or not now:
            return
        done = report.round.number + 1
        if done < self.plan.rounds and is_due(done, self.plan.eval_every):
            self.evaluate(round_number=done)
        if done == self.plan.rounds and self.outer.shared:
            self.evaluate(round_number=done)
        if not report.failed and (done == self.plan.rounds or is_due(done, self.plan.checkpoint_every)):
            self.to_be_saved = True
            self.save_when_due()

    def save_when_due(self) -> None:
        """Save if a save is pending.

        If rounds may land early, wait for the step at which all peers have landed, so that all save after the same one.
        """
        schedule = self.outer.schedule
        if self.to_be_saved and (not schedule.early or schedule.due(self.step).land):
            self.to_be_saved = False
            self.save()

    def account(self, report: RoundReport) -> None:
        """Report a round. Raises RoundFailed after too many failed rounds in a row."""
        for refusal in report.refused:
            self.emit("status", text=f"left out, {refusal}")
        for note in report.notes:
            self.emit("status", text=note)
        for peer in report.diverged:
            self.emit("status", text=f"{peer} has other weights than most peers: it has to take over theirs")
        self.failed_in_a_row = self.failed_in_a_row + 1 if report.failed else 0
        self.totals["wait_s"] += report.wait_s
        counters = self.counters()
        self.totals["payload_bytes"] += report.payload_bytes
        self.totals["rounds_failed"] += bool(report.failed)
        spent = self.spent.on(report)
        for name, seconds in spent.items():
            self.totals[name] += seconds
        self.emit(
            "round",
            round=report.round.number + 1,
            fragment=report.round.fragment,
            failed=report.failed,
            peers=len(report.peers),
            alive=self.exchange.size if self.replicated is None else self.replicated.alive,
            expected=self.exchange.size,
            took_part=self.exchange.peer in report.peers,
            refused=len(report.refused),
            **self.partners(report),
            payload_bytes=report.payload_bytes,
            launch_s=report.launch_s,
            wait_s=report.wait_s,
            land_s=report.land_s,
            **spent,
            utilization=utilization(**spent),
            delta_norm=report.delta_norm,
            mean_norm=report.mean_norm,
            slow_hash=f"{report.slow_hash:016x}",
            bytes_sent=counters["bytes_sent"],
            **{name: count for name, count in counters.items() if name == "refused_messages"},
        )
        if self.failed_in_a_row >= self.plan.max_failed_rounds:
            raise RoundFailed(f"{self.failed_in_a_row} rounds in a row did not complete, the last one: {report.failed}")

    def partners(self, report: RoundReport) -> dict[str, list[str]]:
        """Return this worker's partners in the round, if they differ between workers; else nothing."""
        return {} if self.exchange.info.agrees else {"partners": [x for x in report.peers if x != self.exchange.peer]}

    def tell_step(self, report: StepReport) -> None:
        """Emit a step event every `log_every` inner steps."""
        if self.step // self.plan.log_every != self.told // self.plan.log_every:
            self.told = self.step
            rate = report.tokens / report.compute_s
            self.emit("step", loss=report.loss, lr=report.lr, tokens=self.trainer.tokens, tokens_per_s=rate)

    def evaluate(self, *, round_number: int) -> None:
        """Evaluate the global model on this worker's share of the validation set, and report the sum of nats.

        If replicas differ, the global model is their mean, and `spread` states how far apart they are. Without lockstep
        the mean is formed only at the end; until then each worker evaluates its own replica.
        """
        if self.outer.shared or not self.exchange.info.lockstep:
            self.tell_validation(round_number, self.outer.slow)
        else:
            found = average(self.outer, self.lanes)
            self.tell_validation(round_number, found.mean, spread=found.spread, replicas=len(found.peers))

    def tell_validation(self, round_number: int, weights: Tensors, **replicas: float) -> None:
        """Evaluate the given weights on this worker's share, and emit an eval event."""
        nats = self.trainer.evaluate(self.validation, weights, batch=self.plan.eval_batch)
        tokens = self.validation[:, 1:].numel() * self.ranks.size
        self.emit("eval", round=round_number, nats=nats, predicted=tokens, tokens=self.trainer.tokens, **replicas)

    def save(self) -> None:
        """Save this worker's whole state. The parent process seals the checkpoint once all local workers have saved."""
        rest = {"rng": rng.get_state(), "counters": self.counters()}
        save(
            self.trainer,
            rest,
            run_dir=self.plan.run_dir,
            step=self.step,
            worker=self.plan.index,
            slow_hash=f"{self.outer.slow_hash:016x}",
        )
        self.emit("saved")

    def resume(self, step: int) -> None:
        """Restore this worker's state at `step`. The random generators of an island's other ranks start fresh."""
        rest = load(self.trainer, run_dir=self.plan.run_dir, step=step, worker=self.plan.index)
        if self.ranks.is_leader:
            rng.set_state(rest["rng"])
        self.base |= rest["counters"]
        self.totals = self.base | {"bytes_sent": 0, "bytes_received": 0}

    def counters(self) -> dict[str, Any]:
        """Return totals since the run began, including earlier sessions, with the bytes of all lanes."""
        moved = [int(total) for total in self.lanes.all_reduce([self.traffic.bytes_sent, self.traffic.bytes_received])]
        counted = {"bytes_sent": moved[0], "bytes_received": moved[1], **counters(self.exchange)}
        return self.totals | {name: self.base.get(name, 0) + count for name, count in counted.items()}

    def emit(self, event: str, **fields: Any) -> None:
        """Emit one event; on all ranks of an island but the first, do nothing."""
        if self.ranks.is_leader:
            self.emit_event({"event": event, "worker": self.plan.index, "step": self.step, **fields})


def is_due(done: int, every: int) -> bool:
    """Return whether something done every `every` rounds (0: never) is due after `done` rounds."""
    return every > 0 and done % every == 0


def of_all_lanes(report: RoundReport, ranks: RankGroup) -> RoundReport:
    """Return the report of a round with payload bytes and norms combined over all lanes of an island."""
    of_lane = [report.payload_bytes, report.delta_norm**2, report.mean_norm**2]
    payload_bytes, delta, mean = ranks.all_reduce(of_lane)
    return replace(report, payload_bytes=int(payload_bytes), delta_norm=math.sqrt(delta), mean_norm=math.sqrt(mean))
