"""Apply a verified round to a replica: update the residual, the slow and fast weights, and the parts that adapt.

compare    compare the slow weights of the peers that sent messages; a replica in the minority applies nothing
inspect    let observers read the messages and the slow weights to which they apply
land       e ← x − x̂;   φ ← method(φ, ḡ);   θ ← merge(φ, θ)          (pipeline)
observe    adapt schedule, codec and screen, identically on all replicas; adapt the compressor to the cost of the round
publish    offer the new shared state to the exchange, which may send it to other peers, and report unusable messages

core/loop.py defines the symbols.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch

from outerloop import wire
from outerloop.core.eager import EagerUpdates
from outerloop.core.launch import RoundLauncher
from outerloop.core.pipeline.values import AggregatedRound
from outerloop.core.round import InFlight, ReceivedRound, RoundCostMeter, RoundReport
from outerloop.core.shared_state import SharedState
from outerloop.core.verify import RoundVerifier, VerifiedRound
from outerloop.exchange_protocols import landed_commit, report_contributors, report_landed, report_refused
from outerloop.protocols import CostAware
from outerloop.types import Round

Observer = Callable[[Round, Sequence[wire.Message]], None]
"""Called with a verified round and its usable messages, sorted by peer name, before the slow weights change."""


class RoundLander:
    """Applies verified rounds to one replica.

    Args:
        launcher, verifier, shared_state, meter: parts of the same outer loop.
        cost_aware: the compressor if it adapts to the cost of rounds, else None.
        eager: applies eager updates, or None if the loop does not use them.

    Attributes:
        last_landed: the last round that landed in this process, or None before the first one.
        observers: called before each landing. They must leave all weights as they are.
    """

    def __init__(
        self,
        launcher: RoundLauncher,
        verifier: RoundVerifier,
        shared_state: SharedState,
        *,
        meter: RoundCostMeter,
        cost_aware: CostAware | None,
        eager: EagerUpdates | None,
    ) -> None:
        self.launcher, self.verifier, self.shared_state = launcher, verifier, shared_state
        self.replica, self.pipeline, self.exchange = launcher.replica, launcher.pipeline, launcher.exchange
        self.meter, self.cost_aware, self.eager = meter, cost_aware, eager
        self.last_landed: Round | None = None
        self.observers: list[Observer] = []

    @torch.no_grad()
    def apply(self, flight: InFlight, received: ReceivedRound, verified: VerifiedRound) -> RoundReport:
        """Land a round: apply all of its changes to the replica, and return its report.

        If this raises StateTransferRequired or ReplicasDiverged, the replica is unchanged.
        """
        messages, own_hash = verified.aggregated.messages, self.replica.joint_hash(flight.update)
        diverged, undecided = self.verifier.check_replicas(messages, own_hash, flight.round)
        included = self.is_included(flight, received, verified)
        observing_s = self.notify_observers(flight.round, messages)
        squares = self.land(flight, verified.aggregated.to(self.replica.device), included=included)
        if self.exchange.peer in {**verified.excluded, **verified.refused}:
            self.discard(flight)
        adapted = self.observe(flight, verified)
        self.publish(flight, verified)
        self.last_landed = flight.round
        land_s = time.perf_counter() - received.at_s - observing_s
        return flight.report(
            self.slow_hash,
            wait_s=received.wait_s,
            transfer_s=received.transfer_s,
            peers=tuple(message.header.peer for message in messages),
            commit=landed_commit(self.exchange).hex(),
            diverged=diverged,
            refused=(*verified.excluded.values(), *verified.refused.values()),
            land_s=land_s,
            mean_norm=math.sqrt(squares),
            notes=tuple(filter(None, [undecided, adapted, self.observe_cost(flight, land_s)])),
        )

    def notify_observers(self, round: Round, messages: Sequence[wire.Message]) -> float:
        """Call all observers. Return the seconds that they took, which are not part of the cost of a landing."""
        began_s = time.perf_counter()
        for observe in self.observers:
            observe(round, messages)
        return time.perf_counter() - began_s

    def is_included(self, flight: InFlight, received: ReceivedRound, verified: VerifiedRound) -> bool:
        """Return whether the round includes the message of this launch, and not another one, sent before a restart."""
        own = self.exchange.peer
        sent = [bytes(contribution.blob) for contribution in received.contributions if contribution.peer == own]
        return sent == [flight.blob] and own in {message.header.peer for message in verified.aggregated.messages}

    def land(self, flight: InFlight, aggregated: AggregatedRound, *, included: bool) -> float:
        """Update the residual, the slow and fast weights, and the hashes. Return Σ ḡ², where ḡ is the aggregate.

        included: whether the round includes this peer's message.
        """
        if self.eager:
            aggregated = self.eager.refreshed(aggregated, flight)
        squares = self.pipeline.land(aggregated, flight.update, flight.fast_at_launch, included=included)
        self.replica.update_hashes(flight.update)
        if included:
            self.launcher.waiting[flight.round.fragment] -= flight.samples
        return squares

    def discard(self, flight: InFlight) -> None:
        """Discard this peer's own progress and residual: θ ← φ, e ← 0. Its payload was refused or voted out.

        This includes its inner steps since the launch. Otherwise the next payload would contain the same values again.
        After a refusal because of the norm, all later payloads would be refused too, because values that do not count
        never become smaller.
        """
        self.pipeline.discard(flight.update)
        self.launcher.waiting[flight.round.fragment] -= self.launcher.samples_of(flight.round)

    def observe(self, flight: InFlight, verified: VerifiedRound) -> str:
        """Let the adaptive parts observe a landed round. Return a note on what changed, or "" if nothing did."""
        self.verifier.record_peers(verified.aggregated.messages, flight.round)
        return self.shared_state.observe(flight.round, verified, flight.update)

    def publish(self, flight: InFlight, verified: VerifiedRound) -> None:
        """Report to the exchange that the round has been applied, who contributed, and which messages were unusable."""
        report_landed(self.exchange, flight.round, self.shared_state.serialize)
        if ledger := self.shared_state.ledger:
            report_contributors(self.exchange, flight.round, ledger.contributors())
        report_refused(self.exchange, flight.round, verified.refused)

    def observe_cost(self, flight: InFlight, land_s: float) -> str:
        """Report the round's cost to a cost-aware compressor if this peer sent a message. Return its note, or ""."""
        cost = self.meter.cost(flight.launch_s + land_s)
        return self.cost_aware.observe(cost) if self.cost_aware and flight.blob else ""

    @property
    def slow_hash(self) -> int:
        """64-bit hash of all slow weights."""
        return self.replica.joint_hash(self.replica.slow)
