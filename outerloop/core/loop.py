"""Launch and land rounds. The whole path of a round is:

    every H inner steps:   Δ = φ − θ  →  x = Δ + β e  →  compress  →  wire  →  exchange                (launch.py)
    at landing:            ḡ = aggregate of all payloads, this peer's own payload decoded like the others  (verify/)
                           e ← x − x̂;   φ ← method(φ, ḡ);   θ ← merge(φ, θ)                            (land.py)
    not included:          φ ← method(φ, ḡ);   θ ← φ − Δ,   so that Δ and e do not change
    refused:               φ ← method(φ, ḡ);   θ ← φ,  e ← 0

φ: slow weights, θ: fast weights, Δ: pseudo-gradient, e: residual, β: factor by which the feedback multiplies e, x: what
is compressed, x̂: x after compression and decoding. "Not included": the round landed without this peer's payload, or
with one that this peer sent before a restart.
"Refused": its payload arrived, but does not count, because of its norm, its content or votes (VerifiedRound).

This order guarantees three properties:

    progress is kept     A round that failed, or that was decided without this peer, changes neither Δ nor the residual:
                         only a landing that includes or refuses this peer's own payload does. The next Δ contains the
                         progress that the other rounds did not apply. With clip=none all of it arrives. With
                         clip=auto in a swarm, or clip=median, the norm of a payload is limited, usually to the median
                         norm of the round (norm_screen.py), and what exceeds the limit is lost. With eager updates
                         (eager.py), a failed round ends the run instead.
    equal replicas       Replicas agree bit for bit: all peers sum the same bytes in the same order, and a 64-bit hash
                         of the slow weights in each header reveals a difference.
    no unsent updates    Over all rounds that include a peer, the sum of its Δ equals the sum of its decoded payloads
                         x̂, plus the residual e (with β = 1; with a smaller β, each round forgets a part of e). A
                         refused payload ends this sum, which then begins again at 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from outerloop import wire
from outerloop.core.land import RoundLander
from outerloop.core.launch import RoundLauncher
from outerloop.core.round import RoundReport
from outerloop.core.round_scheduler import RoundScheduler, StepClock
from outerloop.core.verify.early import EarlyVerifier
from outerloop.exchange_protocols import decided
from outerloop.types import Round, RoundFailed, StateTransferRequired


class RoundLoop:
    """Runs the rounds of one replica between its inner steps.

    Attributes:
        inner_step: the position in the run.
        may_extend: called if an inner step counts as several: returns whether one more may be counted after a step.

    Args:
        scheduler: determines which rounds are due.
        launcher: launches rounds.
        lander: lands rounds.
        timeout_s: maximum time that a landing waits for its round's messages.
    """

    def __init__(
        self, scheduler: RoundScheduler, launcher: RoundLauncher, lander: RoundLander, *, timeout_s: float
    ) -> None:
        self.scheduler, self.launcher, self.lander = scheduler, launcher, lander
        self.early = EarlyVerifier(launcher, lander.verifier)
        self.clock = StepClock(scheduler.schedule.step_s)
        self.island, self.exchange, self.timeout_s = launcher.island, launcher.exchange, timeout_s
        self.inner_step = 0
        self.may_extend: Callable[[int], bool] = lambda _: True
        self.reports: list[RoundReport] = []

    def after_inner_step(self, samples: int) -> list[RoundReport]:
        """Count one inner step with this many samples, then launch and land the rounds that are due.

        Returns the reports of the rounds that landed or failed. Raises ReplicasDiverged if replicas that must be equal
        differ, or RoundFailed if a round failed and the run uses eager updates.
        """
        self.launcher.add_samples(samples)
        self.reports, before = [], self.inner_step
        with self.lander.meter.between_steps(), self.island.followers_serving():
            try:
                self.advance()
            except StateTransferRequired as transfer:
                self.take_over(*transfer.state(self.lander.shared_state.max_bytes))
            if self.inner_step != before + 1:
                self.island.run_on_followers("move", inner_step=self.inner_step)
        return self.reports

    def advance(self) -> None:
        """Advance by the steps that `StepClock` has counted, but stop after a step at which a round lands or fails.

        If `may_extend` refuses a step, the next call counts it.
        """
        steps = self.clock.passed()
        for counted in range(steps):
            if counted and not self.may_extend(self.inner_step):
                self.clock.put_back(steps - counted)
                break
            self.inner_step += 1
            self.run_due()
            if self.reports:
                self.clock.restart()
                break

    def run_due(self) -> None:
        """Replay, launch and land the rounds that are due after the current step."""
        if self.scheduler.is_idle(self.inner_step):
            return
        self.launcher.wait()
        replayed: set[Round] = set()
        while (due := self.scheduler.due(self.inner_step, lambda r: decided(self.exchange, r), replayed)).replays:
            self.replay(due.replays)
            replayed.update(due.replays)
        for round in due.launches:
            self.launch(round)
        if due.landings:
            self.launcher.wait()
        for round in due.landings:
            if round in self.launcher.in_flight:
                self.land(round)
        for round in self.launcher.arrived() if self.scheduler.schedule.early else ():
            self.land(round)

    def replay(self, rounds: Sequence[Round]) -> None:
        """Land all rounds in flight and these rounds, decided without this peer. Advance to the next launch's step."""
        for round in rounds:
            self.launcher.join_decided_round(round)
        for round in sorted(self.launcher.in_flight):
            self.land(round)
        self.inner_step = self.scheduler.step_after_replay(self.inner_step)

    def launch(self, round: Round) -> None:
        """Launch a round. If the run uses eager updates, apply the first eager update when round 0 launches.

        Raises UserError if the model's parameters were replaced.
        """
        self.launcher.start_round(round)
        self.early.expect(round)
        if self.lander.eager and not round.number:
            self.lander.eager.begin(self.launcher.in_flight[round], self.exchange.size)

    def land(self, round: Round) -> None:
        """Wait for a round, then apply all of it, or nothing if it failed. Store the round's report.

        Raises RoundFailed if it failed and the run uses eager updates: the slow weights already contain a part of this
        peer's contribution, which only the mean of that round makes equal on all peers.

        If this raises QuorumLost, StateTransferRequired or ReplicasDiverged, the replica is unchanged. The round is
        then no longer in flight, because its landing would never be due again. As after a failed round, the next Δ
        contains its progress.
        """
        flight, began_s = self.launcher.in_flight.pop(round), time.perf_counter()
        try:
            received = flight.receive(self.exchange, self.timeout_s)
            verified = self.island.compute(self.early.verify, flight, received)
        except (RoundFailed, wire.InvalidMessage) as reason:
            if self.lander.eager:
                raise RoundFailed(
                    f"{round}: {reason}; with eager=true, replicas differ after a failed round: resume all"
                    " peers from the last checkpoint"
                ) from reason
            report = flight.report(self.lander.slow_hash, wait_s=time.perf_counter() - began_s, failed=str(reason))
        else:
            report = self.island.compute(self.lander.apply, flight, received, verified)
        self.reports.append(report)

    def take_over(self, round: Round, content: bytes) -> None:
        """Load `content`, the other peers' shared state after `round`, and continue as if that round had landed.

        This forgets the rounds in flight, but does not cancel their exchange. The exchange itself ends the rounds that
        the state includes, and a message that the other peers already have cannot be withdrawn.
        """
        self.launcher.wait()
        self.early.end()
        self.lander.shared_state.restore(content)
        self.launcher.in_flight.clear()
        self.inner_step = self.scheduler.launch_step(round)
        self.clock.restart()
