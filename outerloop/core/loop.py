"""The outer loop. It launches and lands rounds; the whole path of a round:

    every H inner steps:   Δ = φ − θ  →  x = Δ + β e  →  compress  →  wire  →  exchange
    at landing:            ḡ = aggregate of all payloads, this peer's own decoded like the rest
                           e ← x − x̂;   φ ← method(φ, ḡ);   θ ← merge(φ, θ)
    left out:              φ ← method(φ, ḡ);   θ ← φ − Δ,   so that Δ and e stay as they were

This order guarantees three properties. A round that failed, or that counted without this peer, costs no progress: the
residual changes, and the fast weights are merged, only at a landing that included this peer's own payload. The next Δ
carries what such a round left behind. Replicas agree bit for bit: all peers sum the same bytes in the same order, and a
64-bit hash of the slow weights in each header reveals a difference. Nothing is lost: what was put in equals what was
sent plus what is held back.
"""

from __future__ import annotations

import math
import time
from typing import Any, Literal

import torch
from torch.nn import Module

from outerloop import wire
from outerloop.aggregate.screen import screen_of
from outerloop.core import compatibility
from outerloop.core.codec import UpdateCodec, leader
from outerloop.core.eager import first_mean, refreshed
from outerloop.core.launch import RoundLauncher, is_concurrent
from outerloop.core.pipeline import RoundPipeline
from outerloop.core.round import InFlight, ReceivedRound, RoundReport
from outerloop.core.round_cost import RoundCostMeter
from outerloop.core.round_scheduler import RoundScheduler
from outerloop.core.shared_state import SharedState
from outerloop.core.verify import RoundVerifier, VerifiedRound
from outerloop.protocols import (
    AdaptiveSchedule,
    Aggregate,
    Compressor,
    CostAware,
    Exchange,
    Feedback,
    OuterMethod,
    Schedule,
    Stateful,
)
from outerloop.replica.buffers import Buffers
from outerloop.replica.island import Island
from outerloop.replica.sharding import unwrapped
from outerloop.replica.state_size import momentum_share, residual_share
from outerloop.replica.weights import Replica
from outerloop.state.checkpoint import on_device, opened, whole_parts
from outerloop.types import Contribution, Round, RoundFailed, StateTransferRequired

STATE_DTYPES = {"float32": torch.float32, "float64": torch.float64}


class OuterLoop(RoundScheduler):
    """One combination of method x feedback x compressor x exchange x schedule, applied to a model.

    Args:
        model: its trainable parameters are the fast weights; updated in place.
        method, compress, feedback, aggregate, exchange, schedule: the axes.
        merge_local: weight of the LOCAL value when a landed fragment is written back, 0 .. 1; "carry": the landed value
            plus the progress of the inner steps since the launch.
        buffers: "local", or "averaged": BatchNorm statistics become the mean of all peers when a round lands.
        eager: at landing, replace this peer's contribution to the round by its current one (arXiv 2502.12996); needs a
            schedule that lands a round just after the next round of the same fragment was launched.
        clip: "median", "none", or "auto": which contributions are rejected or scaled down (aggregate/norm_screen.py).
        state_dtype: "float32", or "float64" for slow weights that keep every bit of φ − θ (twice the memory).
        timeout_s: the longest time that a landing waits for its exchange.
        seed: of every random choice of a compressor; equal on all peers.
        rounds: number of rounds of the run; a peer that was away does not skip beyond the last. None: no limit.
        island: gives access to the model; None: `Island(model)`.

    `warnings` holds a line for each setting that is allowed but probably not intended. `residual_share` and
    `momentum_share` are the bytes that feedback and method will hold for each byte of slow weights.

    Raises:
        UserError: for parts that cannot work together.
    """

    def __init__(
        self,
        model: Module,
        *,
        method: OuterMethod,
        compress: Compressor,
        feedback: Feedback,
        aggregate: Aggregate,
        exchange: Exchange,
        schedule: Schedule,
        merge_local: float | Literal["carry"] = 0.0,
        buffers: str = "local",
        eager: bool = False,
        clip: str = "auto",
        state_dtype: str = "float32",
        timeout_s: float = 600.0,
        seed: int = 0,
        rounds: int | None = None,
        island: Island | None = None,
    ) -> None:
        compatibility.refuse(
            method=method,
            compress=compress,
            feedback=feedback,
            aggregate=aggregate,
            exchange=exchange,
            schedule=schedule,
            eager=eager,
            merge_local=merge_local,
        )
        super().__init__(exchange=exchange, schedule=schedule, rounds=rounds)
        self.warnings = compatibility.doubts(method=method, compress=compress, feedback=feedback, schedule=schedule)
        self.model, self.buffers = model, Buffers(unwrapped(model), kind=buffers)
        self.payload = UpdateCodec(compress, seed=seed, beside=self.buffers.schema)
        self.method, self.feedback = method, feedback
        self.choosing = compress if isinstance(compress, CostAware) else None
        self.evolving = schedule if isinstance(schedule, AdaptiveSchedule) else None
        self.meter = RoundCostMeter(exchange, delay=schedule.delay, step_s=schedule.step_s)
        self.eager, self.timeout_s = eager, timeout_s
        self.screen = screen_of(clip, method=method, exchange=exchange, eager=eager)
        self.shared = exchange.agrees and method.shared and not eager
        self.replica = Replica(model, dtype=STATE_DTYPES[state_dtype], island=island)
        self.island, self.slow = self.replica.island, self.replica.slow
        compatibility.refuse_fragments(schedule, list(self.slow))
        self.residual_share = residual_share(feedback, STATE_DTYPES[state_dtype])
        self.momentum_share = momentum_share(method, STATE_DTYPES[state_dtype])
        self.method.init(self.slow)
        concurrent = is_concurrent(exchange, schedule, method)
        self.pipeline = RoundPipeline(
            self.island,
            self.slow,
            self.buffers,
            method=method,
            feedback=feedback,
            aggregate=aggregate,
            payload=self.payload,
            peer=exchange.peer,
            delay=schedule.delay,
            sync_every=schedule.sync_every,
            merge_local=merge_local,
            concurrent=concurrent,
        )
        self.launcher = RoundLauncher(
            self.replica, self.pipeline, self.payload, exchange=exchange, schedule=schedule, concurrent=concurrent
        )
        measures = self.evolving is not None
        self.verifier = RoundVerifier(
            self.pipeline, exchange, shared=self.shared, measures=measures, screen=self.screen
        )
        self.shared_state = SharedState(
            self.replica, self.buffers, method=method, payload=self.payload, evolving=self.evolving, screen=self.screen
        )
        self.meetings = 0
        self.parts: dict[str, Any] = {"method": method, "feedback": feedback, "payload": self.payload}
        self.parts |= {
            "choosing": compress if isinstance(compress, Stateful | CostAware) else None,
            "schedule": self.evolving,
            "buffers": self.buffers,
        }
        self.parts |= {"screen": self.screen}

    @property
    def spare_bytes(self) -> int:
        """Bytes that launches and landings keep from one round to the next, besides residual and momentum."""
        return self.pipeline.spare_bytes

    @property
    def slow_hash(self) -> int:
        """64-bit hash of all slow weights."""
        return self.replica.hash_of(self.slow)

    def after_inner_step(self, samples: int) -> list[RoundReport]:
        """Count one inner step of this many training samples; launch and land what is due.

        Takes over the others' state if this peer was away for too long. Raises ReplicasDiverged.
        """
        self.waiting = [waiting + samples for waiting in self.waiting]
        reports = []
        with self.meter.between_steps(), self.island.at_work():
            try:
                for report in self.go_on():
                    reports.append(report)
            except StateTransferRequired as others:
                self.take_over(*others.state(self.shared_state.max_bytes))
        return reports

    def find_others(self) -> None:
        """Take over the others' state before a late peer's first inner step, if it cannot land the rounds it missed."""
        self.meetings = 2  # the other peers already held two meetings, when they started
        try:
            self.exchange.decided(self.next_round)
        except StateTransferRequired as others:
            self.take_over(*others.state(self.shared_state.max_bytes))

    def take_over(self, round: Round, content: bytes) -> None:
        """Replace the shared state by the others' as of a round, and continue from that round."""
        self.wait_for_launches()
        self.shared_state.restore(content)
        self.go_on_from(round)

    def depart(self, round: Round) -> None:
        """Launch a round, immediately or while inner steps continue. Raises UserError if the model has changed."""
        if self.launcher.thread:
            leads, samples = self.leads(round), self.samples_of(round)
            self.pending_launches[round] = self.launcher.meanwhile(
                round, samples, leads=leads, announced=self.notifies_updates
            )
        else:
            self.in_flight[round] = self.island.compute(self.launch, round)
            if self.eager and not round.number:
                self.begin_eagerly(self.in_flight[round])

    def launch(self, round: Round) -> InFlight:
        """Launch a round immediately. Changes no lasting state. Raises UserError if the model has changed."""
        return self.launcher.at_once(round, self.samples_of(round), leads=self.leads(round))

    def left_out(self, round: Round) -> InFlight:
        """Return a round in flight that was decided without a message of this peer."""
        offered = {name: self.slow[name] for name in self.schedule.fragment(round.fragment, list(self.slow))}
        return InFlight(round, offered, b"", self.exchange.start(b"", round), samples=0, launch_s=0.0, delta_norm=0.0)

    def land(self, round: Round) -> RoundReport:
        """Wait for a round, then apply all of it or nothing.

        Raises StateTransferRequired or ReplicasDiverged. Then nothing has changed, and the next round carries what this
        one offered.
        """
        flight = self.in_flight.pop(round)
        began, moving_s = time.perf_counter(), self.exchange.moving_s
        try:
            received = flight.pending.wait(self.timeout_s)
            arrival = ReceivedRound(received, began, time.perf_counter(), self.exchange.moving_s - moving_s)
            verdict = self.island.compute(self.judged, flight, arrival)
        except (RoundFailed, wire.InvalidMessage) as reason:
            return flight.report(self.slow_hash, wait_s=time.perf_counter() - began, failed=str(reason))
        return self.island.compute(self.apply, flight, arrival, verdict)

    @torch.no_grad()
    def judged(self, flight: InFlight, arrival: ReceivedRound) -> VerifiedRound:
        """Verify and combine the messages of a round, once for all workers of a process.

        Raises RoundFailed, InvalidMessage.
        """
        received, offered = arrival.received, flight.update
        return self.exchange.once(flight.round, lambda refused: self.verifier.verdict(received, offered, refused))

    @torch.no_grad()
    def apply(self, flight: InFlight, arrival: ReceivedRound, verdict: VerifiedRound) -> RoundReport:
        """Apply everything that a landed round changes, and return its report."""
        round, combined = flight.round, verdict.combined.to(self.replica.device)
        own = self.replica.hash_of(flight.update)
        diverged = self.verifier.diverged(combined.messages, own, round)
        doubt = self.verifier.in_doubt(combined.messages, own, round)
        if self.eager:
            now = self.in_flight[Round(round.number + 1, round.fragment)].update
            combined = refreshed(combined, now=now, then=flight.update)
        peers = tuple(m.header.peer for m in combined.messages)
        sent = [bytes(c.blob) for c in arrival.received if c.peer == self.exchange.peer and c.peer in peers]
        counted = sent == [flight.blob]
        squares = self.pipeline.land(combined, flight.update, flight.fast_at_launch, included=counted)
        evolved = self.evolving.learn(round, verdict.agreement) if self.evolving else ""
        self.payload.landed(combined.messages, flight.update)
        self.screen.learn(verdict.measured)
        self.verifier.landed(combined.messages, round)
        self.replica.rehash(flight.update)
        self.waiting[round.fragment] -= flight.samples if counted else 0
        self.exchange.landed(round, self.shared_state.serialize)
        if verdict.refused:
            self.exchange.refused(round, verdict.refused)
        land_s = time.perf_counter() - arrival.at_s
        return flight.report(
            self.slow_hash,
            wait_s=arrival.waited_s,
            moved_s=min(arrival.waited_s, arrival.moving_s),
            peers=peers,
            diverged=diverged,
            refused=tuple(verdict.refused.values()),
            land_s=land_s,
            mean_norm=math.sqrt(squares),
            notes=tuple(filter(None, [doubt, evolved, self.learned(flight, land_s)])),
        )

    def learned(self, flight: InFlight, land_s: float) -> str:
        """Let a compressor that adapts learn the cost of a round that this peer sent to.

        Return its note on what has changed.
        """
        cost = self.meter.cost(flight.launch_s + land_s)
        return self.choosing.learn(cost) if self.choosing and flight.blob else ""

    @torch.no_grad()
    def begin_eagerly(self, flight: InFlight) -> None:
        """Apply the first eager update, before any round has landed."""
        self.method.update(self.slow, first_mean(flight.update, self.exchange.size), {})
        self.pipeline.write(flight.update)
        self.replica.rehash(flight.update)

    def leads(self, round: Round) -> bool:
        """Return whether this peer's compressor sets the "next" parts for the next round.

        Peers lead in turn, and only if all of them receive those parts before the next round.
        """
        heard = self.exchange.agrees and not self.eager
        return heard and leader(round.number + 1, self.exchange.size) == self.exchange.rank

    def meet(self, blob: bytes) -> list[Contribution]:
        """Exchange bytes with all peers and return those of all, this peer's included. Raises RoundFailed.

        All peers must call it equally often.
        """
        self.wait_for_launches()
        self.meetings += 1
        return self.exchange.meet(blob, self.meetings, self.timeout_s)

    def state_dict(self) -> dict[str, Any]:
        """Return what `evolved` returns, in a form that torch's checkpoint functions save and load whole.

        These are torch.save and torch.distributed.checkpoint.
        """
        return whole_parts(self.evolved())

    def evolved(self) -> dict[str, Any]:
        """Return all state that evolves, including rounds in flight: the state of each part under its name."""
        self.wait_for_launches()
        return {
            "slow": dict(self.slow),
            **{name: part.state_dict() if part else {} for name, part in self.parts.items()},
            "inner_step": self.inner_step,
            "samples": list(self.waiting),
            "in_flight": [flight.state_dict() for flight in self.in_flight.values()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` or `evolved` returned; rounds in flight are offered to the exchange again."""
        self.wait_for_launches()
        state = on_device(opened(state), self.replica.device)
        self.replica.load_slow(state["slow"])
        for name, part in self.parts.items():
            if part:
                part.load_state_dict(state.get(name, {}))  # checkpoints of older runs have no screen
        self.inner_step, samples = state["inner_step"], state["samples"]
        # older checkpoints hold a single number
        self.waiting = list(samples) if isinstance(samples, list) else [samples] * len(self.waiting)
        flights = [InFlight.resumed(saved, self.exchange) for saved in state["in_flight"]]
        self.in_flight = {flight.round: flight for flight in flights}
