"""One worker's run: join, resume, train, evaluate, save, hand in the model; every step told as an event.

The ranks of an island do all of it together, and the first of them tells. Events are flat dictionaries with "event" and
"worker": status, step, round, eval, done. Names carry their units.
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
from outerloop.core.replica_average import ALONE, average
from outerloop.core.round import SPENT, RoundReport, utilization
from outerloop.inner.step_time import StepTimeBudget
from outerloop.inner.trainer import StepReport, Trainer
from outerloop.inner.worker_checkpoint import keep_payload, load, save
from outerloop.protocols import Exchange
from outerloop.replica.rank_group import RankGroup
from outerloop.types import Outvoted, ReplicasDiverged, RoundFailed, Tensors

Event = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What one worker is to do. `*_every` in rounds, `log_every` in inner steps; 0 means only at the end.

    `keep_payload_rounds`: how many of the last rounds' own payloads stay on disk.
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
    """Drives one trainer from its first or its saved inner step to the last.

    Args:
        plan: what to do.
        trainer: this worker's inner trainer, its outer loop attached.
        exchange: the outer loop's exchange, joined already.
        validation: this worker's share of the validation windows, (n, seq_len + 1) int64.
        emit: where events go.
        check_stop: raises Stopped when the run shall end.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        trainer: Trainer,
        exchange: Exchange,
        validation: Tensor,
        emit: Callable[[Event], None],
        check_stop: Callable[[], None],
    ) -> None:
        self.plan, self.trainer, self.exchange = plan, trainer, exchange
        self.validation, self.emit_event, self.check_stop = validation, emit, check_stop
        self.ranks = trainer.ranks
        self.lanes = trainer.ranks if trainer.outer.island.in_lanes else ALONE
        self.failed_in_a_row = 0
        self.to_be_saved = False
        self.divergence = ""
        self.spent = StepTimeBudget()
        self.base = {"bytes_sent": 0, "bytes_received": 0, "payload_bytes": 0, "wait_s": 0.0, "rounds_failed": 0}
        self.base |= dict.fromkeys(SPENT, 0.0)
        self.totals = dict(self.base)

    @property
    def step(self) -> int:
        """Inner steps done."""
        return self.trainer.outer.inner_step

    def run(self) -> None:
        """From the start or the checkpoint to the last round.

        Raises Stopped, RoundFailed after too many failures in a row, QuorumLost, ReplicasDiverged, and UserError when
        the peers do not begin at the same point.
        """
        if self.plan.resume_step is not None:
            self.resume(self.plan.resume_step)
        if self.exchange.came_late:
            self.trainer.outer.find_others()
        else:
            self.begin_together()
        if self.step == 0:
            self.evaluate(round_number=0)
        self.told = self.step
        while self.step < self.trainer.outer.schedule.inner_steps(self.plan.rounds):
            self.check_stop()
            report = self.inner_step()
            self.spent.add(report)
            self.tell_step(report)
            for landed in report.rounds:
                self.after_round(landed, now=landed is report.rounds[-1])
            self.save_when_due()
        self.finish()
        self.emit("done", slow_hash=f"{self.trainer.outer.slow_hash:016x}", peer=self.exchange.peer, **self.counters())

    def inner_step(self) -> StepReport:
        """Take one inner step and land what is due.

        Raises ReplicasDiverged once the state is saved: nobody knows yet which of the replicas is wrong. Islands of
        several ranks are not saved: they save collectively, and only the leader sees this error.
        """
        try:
            return self.trainer.step()
        except ReplicasDiverged:
            if self.ranks.size == 1:
                self.save()
            raise

    def finish(self) -> None:
        """End with one model: the mean where replicas differ, else that of most peers (final_check.py). Raises
        Outvoted.
        """
        if not self.trainer.outer.shared:
            self.become_one()
            return
        ending = ending_of(self.trainer.outer)
        if ending.outvoted:
            raise Outvoted(ending.outvoted)
        for line in ending.odd:
            self.tell_once(line)
        self.divergence = ending.divergence

    def raise_if_diverged(self) -> None:
        """Once the model is handed in: raises ReplicasDiverged where no hash was that of most peers at the end."""
        if self.divergence:
            raise ReplicasDiverged(self.divergence)

    def become_one(self) -> None:
        """Take the mean of all replicas that fit as this machine's model of the run, and evaluate it."""
        found = average(self.trainer.outer, self.lanes)
        self.trainer.outer.replica.settle(found.mean)
        for reason in found.refused.values():
            self.tell_once(f"left out, {reason}")
        for peer, part in found.shortened.items():
            self.tell_once(
                f"{peer}: {part:.2g} of its distance from here counts: it is farther than partners usually are"
            )
        replicas, size = len(found.peers), self.exchange.size
        self.tell_once(f"the model is the mean of {replicas} of {size} replicas, {found.spread:.2g} apart")
        self.tell_validation(self.plan.rounds, found.mean, spread=found.spread, replicas=replicas)

    def begin_together(self) -> None:
        """Check that most peers, on whatever machine, begin at one point, with equal weights (initial_state.py).

        Without lockstep each goes on from where it is. One that took over the weights of others saves them: it could
        not draw them again if it were killed before its first checkpoint. Raises UserError.
        """
        if self.exchange.lockstep and begin_alike(self.trainer.outer, meet(self.trainer.outer), self.tell_once):
            self.save()

    def tell_once(self, text: str) -> None:
        """A line of the run, which the first worker of each machine tells."""
        if self.plan.index == 0:
            self.emit("status", text=text)

    def after_round(self, report: RoundReport, *, now: bool = True) -> None:
        """Account, and evaluate and save when it is time: after the last fragment of a round has landed.

        Not `now`: others have landed since, at once, because this peer was away; what there was to see is past.
        """
        self.account(of_all_lanes(report, self.lanes) if self.lanes.size > 1 else report)
        if self.plan.keep_payload_rounds and report.blob and self.ranks.leads:
            folder = self.plan.run_dir / "workers" / str(self.plan.index) / "payloads"
            keep_payload(folder, report, rounds=self.plan.keep_payload_rounds)
        if report.round.fragment < self.trainer.outer.schedule.fragments - 1 or not now:
            return
        done = report.round.number + 1
        if done < self.plan.rounds and is_due(done, self.plan.eval_every):
            self.evaluate(round_number=done)
        if done == self.plan.rounds and self.trainer.outer.shared:
            self.evaluate(round_number=done)
        if not report.failed and (done == self.plan.rounds or is_due(done, self.plan.checkpoint_every)):
            self.to_be_saved = True
            self.save_when_due()

    def save_when_due(self) -> None:
        """Where rounds land early: after the step at which all have landed, so that they save after the same one."""
        schedule = self.trainer.outer.schedule
        if self.to_be_saved and (not schedule.early or schedule.due(self.step).land):
            self.to_be_saved = False
            self.save()

    def account(self, report: RoundReport) -> None:
        """Tell the round; give up after too many failures in a row."""
        for refusal in report.refused:
            self.emit("status", text=f"left out, {refusal}")
        for note in report.notes:
            self.emit("status", text=note)
        for peer in report.diverged:
            self.emit("status", text=f"{peer} holds other weights than most: it is to take over theirs")
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
            alive=self.exchange.alive,
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
        """Whom this worker met, where that differs from worker to worker."""
        return {} if self.exchange.agrees else {"partners": [x for x in report.peers if x != self.exchange.peer]}

    def tell_step(self, report: StepReport) -> None:
        """One line for the log, every `log_every` inner steps."""
        if self.step // self.plan.log_every != self.told // self.plan.log_every:
            self.told = self.step
            rate = report.tokens / report.compute_s
            self.emit("step", loss=report.loss, lr=report.lr, tokens=self.trainer.tokens, tokens_per_s=rate)

    def evaluate(self, *, round_number: int) -> None:
        """The global model on this worker's share of the validation set, as a sum of nats.

        Where replicas differ, the global model is their mean, and `spread` says how far apart they are. Without
        lockstep the mean waits for the end, and until then each worker tells of its own replica.
        """
        outer = self.trainer.outer
        if outer.shared or not self.exchange.lockstep:
            self.tell_validation(round_number, outer.slow)
        else:
            found = average(outer, self.lanes)
            self.tell_validation(round_number, found.mean, spread=found.spread, replicas=len(found.peers))

    def tell_validation(self, round_number: int, weights: Tensors, **replicas: float) -> None:
        """These weights on this worker's share."""
        nats = self.trainer.evaluate(self.validation, weights, batch=self.plan.eval_batch)
        tokens = self.validation[:, 1:].numel() * self.ranks.size
        self.emit("eval", round=round_number, nats=nats, predicted=tokens, tokens=self.trainer.tokens, **replicas)

    def save(self) -> None:
        """This worker's whole state; the parent seals the generation when all local workers have saved."""
        rest = {"rng": rng.get_state(), "counters": self.counters()}
        save(self.trainer, rest, run_dir=self.plan.run_dir, step=self.step, worker=self.plan.index)
        self.emit("saved")

    def resume(self, step: int) -> None:
        """Take over this worker's state of `step`. Random numbers of an island's other ranks begin anew."""
        rest = load(self.trainer, run_dir=self.plan.run_dir, step=step, worker=self.plan.index)
        if self.ranks.leads:
            rng.set_state(rest["rng"])
        self.base |= rest["counters"]
        self.totals = self.base | {"bytes_sent": 0, "bytes_received": 0}

    def counters(self) -> dict[str, Any]:
        """Totals since the run began, earlier sittings included; bytes of all lanes."""
        moved = [int(total) for total in self.lanes.sum([self.exchange.bytes_sent, self.exchange.bytes_received])]
        counted = {"bytes_sent": moved[0], "bytes_received": moved[1], **self.exchange.counters()}
        return self.totals | {name: self.base.get(name, 0) + count for name, count in counted.items()}

    def emit(self, event: str, **fields: Any) -> None:
        """Send one event on its way; the first rank of an island does."""
        if self.ranks.leads:
            self.emit_event({"event": event, "worker": self.plan.index, "step": self.step, **fields})


def is_due(done: int, every: int) -> bool:
    """Whether something that comes every so often (0: never) comes after `done` rounds."""
    return every > 0 and done % every == 0


def of_all_lanes(report: RoundReport, ranks: RankGroup) -> RoundReport:
    """The account of a round of an island whose ranks are lanes: payloads and norms of all of them."""
    of_lane = [report.payload_bytes, report.delta_norm**2, report.mean_norm**2]
    payload_bytes, delta, mean = ranks.sum(of_lane)
    return replace(report, payload_bytes=int(payload_bytes), delta_norm=math.sqrt(delta), mean_norm=math.sqrt(mean))
