"""Run one worker: resume, train, evaluate, save, agree on the final model, and emit events (events.py).

All ranks of an island run this code together; only the first rank emits events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from outerloop import rng
from outerloop.core.contributor_rows import contributors, to_maps
from outerloop.core.final_check import gather_final_hashes
from outerloop.core.initial_state import exchange_positions, join_late, start_from_same_weights
from outerloop.core.outer_loop import OuterLoop
from outerloop.core.replica_average import ALONE
from outerloop.core.round import RoundReport
from outerloop.exchange_protocols import landed_commit, late_joiner, public_names, roster_news
from outerloop.inner.data.corpus import notes_of
from outerloop.inner.events import Event, round_fields, status_lines
from outerloop.inner.global_evaluation import GlobalEvaluation
from outerloop.inner.run_totals import RunTotals, sum_over_lanes
from outerloop.inner.stop_point import StopPoint
from outerloop.inner.text_sampler import TextSampler
from outerloop.inner.trainer import StepReport, Trainer
from outerloop.inner.worker_checkpoint import keep_payload, load, save
from outerloop.inner.worker_settings import WorkerSettings, is_due
from outerloop.protocols import Exchange
from outerloop.types import Outvoted, ReplicasDiverged, RoundFailed, Stopped


class Worker:
    """Runs one trainer from the first inner step, or from the step of its checkpoint, to the last inner step.

    Args:
        settings: when to evaluate, save, log and give up.
        trainer: this worker's inner trainer.
        outer: the trainer's outer loop.
        exchange: the outer loop's exchange, already joined.
        validation: this worker's share of the validation windows, (n, seq_len + 1) int64.
        emit: called with each event.
        check_stop: raises Stopped if the run has to end at once.
        stop_point: set by another thread if the run has to end early, with a checkpoint.
        sampler: generates text from the global model; None for no samples.
        export: writes this worker's global model to disk; called every `export_every` rounds.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        trainer: Trainer,
        outer: OuterLoop,
        exchange: Exchange,
        validation: Tensor,
        emit: Callable[[Event], None],
        check_stop: Callable[[], None],
        stop_point: StopPoint | None = None,
        sampler: TextSampler | None = None,
        export: Callable[[], None] = lambda: None,
    ) -> None:
        self.stop_point, self.sampler, self.export = stop_point or StopPoint(), sampler, export
        self.settings, self.trainer, self.outer, self.exchange = settings, trainer, outer, exchange
        self.emit_event, self.check_stop = emit, check_stop
        outer.limit_steps(self.stop_point.extend_step)
        self.ranks = trainer.ranks
        self.lanes = trainer.ranks if outer.island.is_sharded else ALONE
        self.totals = RunTotals(exchange, self.lanes)
        self.evaluation = GlobalEvaluation(
            settings,
            trainer=trainer,
            outer=outer,
            exchange=exchange,
            lanes=self.lanes,
            validation=validation,
            emit=self.emit,
            emit_from_first_worker=self.emit_from_first_worker,
        )
        self.commit = ""
        self.consecutive_failures = 0
        self.save_pending = False
        self.saved_step: int | None = None
        self.divergence = ""

    @property
    def step(self) -> int:
        """Return the number of completed inner steps."""
        return self.outer.inner_step

    def run(self) -> None:
        """Train from the start, or from the checkpoint after `resume`, to the last round.

        Raises RoundFailed after too many failed rounds in a row, and UserError if the peers do not start from the same
        position. Also raises Stopped, QuorumLost, ReplicasDiverged and Outvoted (types.py).
        """
        first_step = self.step
        if late_joiner(self.exchange):
            join_late(self.outer)
            self.emit_downloaded_state()
        else:
            self.agree_on_start()
        if self.step == 0:
            self.evaluation.evaluate(round_number=0)
        self.last_logged_step = self.step
        while self.step < self.outer.schedule.inner_steps(self.settings.rounds):
            self.save_at_stop_point()
            self.check_stop()
            report = self.inner_step()
            self.totals.step_time.add(report)
            self.emit_step(report)
            for landed in report.rounds:
                self.after_round(landed, newest=landed is report.rounds[-1])
            self.emit_downloaded_state(report.rounds)
            self.emit_roster_news()
            self.save_when_due()
        self.finish()
        self.evaluate_downloaded_model(first_step)
        self.emit_contributors()
        slow_hash = f"{self.outer.slow_hash:016x}"
        self.emit("done", slow_hash=slow_hash, peer=self.exchange.peer, **self.totals.counters())

    def inner_step(self) -> StepReport:
        """Take one inner step, and launch and land the rounds that are due.

        Before ReplicasDiverged is re-raised, the state is saved, because this replica may be the correct one. With
        several ranks, nothing is saved: all ranks must take part in saving, but only the leader gets this error.
        """
        try:
            return self.trainer.step()
        except ReplicasDiverged:
            if self.ranks.size == 1:
                self.save()
            raise

    def emit_downloaded_state(self, landed: Sequence[RoundReport] = ()) -> None:
        """Emit the last commit in this worker's state if the worker downloaded that state instead of landing the round.

        Call this after each inner step, with the rounds that landed since the last call.
        """
        commit = landed_commit(self.exchange).hex()
        if commit not in (self.commit, *(report.commit for report in landed)):
            self.emit("state", commit=commit)
        self.commit = commit

    def agree_on_start(self) -> None:
        """Check that most peers start from the same position, and give them equal weights (initial_state.py).

        Raises UserError if the check fails. If the exchange does not run peers in lockstep, nothing is checked. A
        worker that loaded weights from other peers saves a checkpoint at once, because it could not reproduce these
        weights if it were killed before its first checkpoint and returned while the others train.
        """
        if self.exchange.info.lockstep and start_from_same_weights(
            self.outer, exchange_positions(self.outer), self.emit_from_first_worker
        ):
            self.save()

    def after_round(self, report: RoundReport, *, newest: bool = True) -> None:
        """Record a round. After a round of the last fragment, evaluate, generate text, export and save as due.

        `newest` is False if later rounds landed after the same inner step, because this peer had fallen behind. The
        weights are then newer than the round, so they are neither evaluated nor saved.
        """
        self.record(report)
        self.limit_failures(report)
        self.keep_payload(report)
        if newest and report.round.fragment == self.outer.schedule.fragments - 1:
            self.after_all_fragments(report.round.number + 1, failed=bool(report.failed))

    def record(self, report: RoundReport) -> None:
        """Add a round to the totals, and emit its events."""
        if self.lanes.size > 1:
            report = sum_over_lanes(report, self.lanes)
        for line in status_lines(report):
            self.emit("status", text=line)
        spent, counters = self.totals.add_round(report), self.totals.counters()
        ledger = self.outer.ledger
        credited = ledger.of_peer(self.exchange.peer) if ledger else None
        fields = round_fields(report, self.exchange, spent=spent, counters=counters, credited=credited)
        self.emit("round", **fields)

    def limit_failures(self, report: RoundReport) -> None:
        """Raise RoundFailed after too many failed rounds in a row."""
        self.consecutive_failures = self.consecutive_failures + 1 if report.failed else 0
        if self.consecutive_failures >= self.settings.max_failed_rounds:
            raise RoundFailed(
                f"{self.consecutive_failures} rounds in a row did not complete; the last one: {report.failed}"
            )

    def keep_payload(self, report: RoundReport) -> None:
        """Write this worker's payload of a round to disk if `keep_payload_rounds` is set."""
        if self.settings.keep_payload_rounds and report.blob and self.ranks.is_leader:
            folder = self.settings.run_dir / "workers" / str(self.settings.index) / "payloads"
            keep_payload(folder, report, rounds=self.settings.keep_payload_rounds)

    def after_all_fragments(self, done: int, *, failed: bool) -> None:
        """Evaluate, generate text, export and, unless the last round `failed`, save, as due after `done` rounds."""
        if self.settings.evaluates_after(done, shared=self.outer.shared):
            self.evaluation.evaluate(round_number=done)
        if self.sampler and is_due(done, self.sampler.every):
            text = self.sampler.sample(self.trainer, self.outer.slow, seed=done)
            self.emit("sample", round=done, text=text)
        if done < self.settings.rounds and is_due(done, self.settings.export_every):
            self.export()
        if not failed and self.settings.saves_after(done):
            self.save_pending = True
            self.save_when_due()

    def save_when_due(self) -> None:
        """Save if a save is pending.

        If the schedule lets rounds land early, keep the save pending until the inner step after which the newest round
        has landed on all peers, so that all peers save after the same step.
        """
        schedule = self.outer.schedule
        if self.save_pending and (not schedule.early or schedule.due(self.step).land):
            self.save_pending = False
            self.save()

    def save_at_stop_point(self) -> None:
        """Save this worker's state and raise Stopped, if the run is interrupted and its stop point is reached.

        If the state of this step is already saved, it is not saved again.

        If different rounds may have landed on different workers by that step, continue to the next step at which this
        is impossible: no round is in flight, or a round has just landed on all workers.
        """
        if self.stop_point.begin_step(self.step):
            return
        schedule = self.outer.schedule
        if schedule.due(self.step).land or not (schedule.early or self.outer.in_flight):
            if self.step != self.saved_step:  # an abort would damage a checkpoint that is already sealed
                self.save()
            self.outer.island.run_on_followers("leave")
            raise Stopped("the run was interrupted")

    def finish(self) -> None:
        """Agree on the final model: the mean if replicas differ by design, else the majority's model (final_check.py).

        Raises Outvoted if this peer's model differs from the majority's.
        """
        if not self.outer.shared:
            self.evaluation.adopt_mean()
            return
        check = gather_final_hashes(self.outer)
        if check.outvoted_error:
            raise Outvoted(check.outvoted_error)
        for line in check.minority_lines:
            self.emit_from_first_worker(line)
        self.divergence = check.divergence_error

    def evaluate_downloaded_model(self, first_step: int) -> None:
        """Evaluate the final model if this worker downloaded it instead of landing the last round.

        `first_step`: number of inner steps with which the worker began. If it resumed after the last round, its model
        was evaluated before the checkpoint was saved.
        """
        if self.evaluation.last_round < self.settings.rounds and self.step != first_step:
            self.evaluation.evaluate(round_number=self.settings.rounds)

    def raise_if_diverged(self) -> None:
        """Raise ReplicasDiverged if no final model had a majority. Call this after exporting the model."""
        if self.divergence:
            raise ReplicasDiverged(self.divergence)

    def save(self) -> None:
        """Save this worker's full state. The supervisor seals the checkpoint once all local workers have saved."""
        rest = {"rng": rng.get_state(), **self.totals.state_dict()}
        save(
            self.trainer,
            rest,
            run_dir=self.settings.run_dir,
            step=self.step,
            worker=self.settings.index,
            slow_hash=f"{self.outer.slow_hash:016x}",
        )
        self.saved_step = self.step
        self.emit("saved")

    def resume(self, step: int) -> None:
        """Restore this worker's state from the checkpoint of `step`. Only the leader restores the random state."""
        rest = load(self.trainer, run_dir=self.settings.run_dir, step=step, worker=self.settings.index)
        if self.ranks.is_leader:
            rng.set_state(rest["rng"])
        self.totals.load_state_dict(rest)
        for note in notes_of(self.trainer.stream):
            self.emit_from_first_worker(f"note: {note}")

    def emit_contributors(self) -> None:
        """Emit what each peer has contributed to the run, from worker 0 of each machine only."""
        if self.outer.ledger and self.settings.index == 0:
            rows = contributors(self.outer.ledger.contributors(), public_names(self.exchange))
            self.emit("contributors", contributors=to_maps(rows))

    def emit_roster_news(self) -> None:
        """Emit a status line for each peer that has joined or left the run, from worker 0 of each machine only."""
        for line in roster_news(self.exchange):
            self.emit_from_first_worker(line)

    def emit_step(self, report: StepReport) -> None:
        """Emit a step event every `log_every` inner steps."""
        if self.step // self.settings.log_every != self.last_logged_step // self.settings.log_every:
            self.last_logged_step = self.step
            rate = report.tokens / report.compute_s
            self.emit("step", loss=report.loss, lr=report.lr, tokens=self.trainer.tokens, tokens_per_s=rate)

    def emit_from_first_worker(self, text: str) -> None:
        """Emit a status line about the whole run, from worker 0 of each machine only."""
        if self.settings.index == 0:
            self.emit("status", text=text)

    def emit(self, event: str, **fields: Any) -> None:
        """Emit one event if this rank is the leader of its island; other ranks emit nothing."""
        if self.ranks.is_leader:
            self.emit_event({"event": event, "worker": self.settings.index, "step": self.step, **fields})
