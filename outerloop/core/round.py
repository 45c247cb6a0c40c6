"""A round in flight, its cost, and the report of a round that has landed or failed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from outerloop.exchange_protocols import metered
from outerloop.protocols import Exchange, Pending
from outerloop.types import Contribution, Result, Round, RoundCost, Tensors

CHARTS = {
    "payload_bytes": "outer/payload_bytes",
    "bytes_sent": "outer/bytes_sent",
    "wait_s": "outer/wait_s",
    "land_s": "outer/land_s",
    "peers": "outer/peers",
    "delta_norm": "outer/delta_norm",
    "mean_norm": "outer/mean_norm",
}
"""Field of RoundReport -> name of its chart in every logger."""
EARLIER_KEYS = {"offered": "update", "then": "fast_at_launch"}
"""Key of a round in flight in checkpoints of earlier versions -> key today."""


@dataclass(frozen=True)
class InFlight:
    """A launched round that has not landed yet.

    update: the compressor's input by parameter name, x = Δ + feedback, where Δ is the pseudo-gradient.
    blob: the message; empty if this peer sent none.
    pending: the exchange of the message, already started.
    samples: number of training samples that contribute to the message.
    launch_s: time that inner steps were stopped for the launch.
    delta_norm: L2 norm of Δ.
    fast_at_launch: copies of the fast weights at the launch, if the landing needs them.
    """

    round: Round
    update: Tensors = field(repr=False)
    blob: bytes = field(repr=False)
    pending: Pending
    samples: int
    launch_s: float
    delta_norm: float
    fast_at_launch: Tensors = field(default_factory=dict, repr=False)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this round. It excludes the exchange, which `resumed` restarts with the same message."""
        return {
            "round": [self.round.number, self.round.fragment],
            "update": self.update,
            "blob": self.blob,
            "samples": self.samples,
            "delta_norm": self.delta_norm,
            "fast_at_launch": self.fast_at_launch,
        }

    @classmethod
    def resumed(cls, saved: dict[str, Any], exchange: Exchange) -> InFlight:
        """Restore a round from its `state_dict`, and restart the exchange with the same message."""
        saved = {EARLIER_KEYS.get(key, key): value for key, value in saved.items()}
        round = Round(*saved["round"])
        return cls(
            round,
            saved["update"],
            saved["blob"],
            exchange.start(saved["blob"], round),
            samples=saved["samples"],
            launch_s=0.0,
            delta_norm=saved["delta_norm"],
            fast_at_launch=saved.get("fast_at_launch", {}),
        )

    def receive(self, exchange: Exchange, timeout_s: float) -> ReceivedRound:
        """Wait for the contributions to this round.

        Raises RoundFailed or QuorumLost if they do not arrive, or StateTransferRequired if this peer is too far behind.
        """
        began_s, before_s = time.perf_counter(), metered(exchange).transfer_s
        contributions = self.pending.wait(timeout_s)
        at_s = time.perf_counter()
        transfer_s = min(at_s - began_s, metered(exchange).transfer_s - before_s)
        return ReceivedRound(contributions, at_s, at_s - began_s, transfer_s)

    def report(self, slow_hash: int, **outcome: Any) -> RoundReport:
        """Return the report of this landed or failed round. `outcome`: the remaining fields of RoundReport."""
        return RoundReport(
            round=self.round,
            samples=self.samples,
            payload_bytes=len(self.blob),
            launch_s=self.launch_s,
            delta_norm=self.delta_norm,
            slow_hash=slow_hash,
            blob=self.blob,
            **outcome,
        )


@dataclass
class PendingLaunch:
    """A round that is being prepared while inner steps continue.

    copied: done when the model's tensors have been copied.
    ready: done when the round is in flight.
    stall_s: time that inner steps have been stopped for this round so far.
    """

    copied: Future[Any]
    ready: Future[InFlight]
    stall_s: float

    def until(self, done: Future[Result]) -> Result:
        """Stop inner steps until `done` (`copied` or `ready`) completes, and return its result.

        Adds the time to `stall_s`. Raises errors of the launch thread.
        """
        began_s = time.perf_counter()
        try:
            return done.result()
        finally:
            self.stall_s += time.perf_counter() - began_s

    def flight(self) -> InFlight:
        """Wait until the round is in flight, and return it. Raises any error of the launch thread."""
        flight = self.until(self.ready)
        return replace(flight, launch_s=self.stall_s)


@dataclass(frozen=True)
class ReceivedRound:
    """The contributions to a round.

    at_s: time.perf_counter() when all of them had arrived.
    wait_s: time that the landing waited for them.
    transfer_s: the part of `wait_s` during which payloads were being transferred.
    """

    contributions: list[Contribution] = field(repr=False)
    at_s: float
    wait_s: float
    transfer_s: float


class RoundCostMeter:
    """Measures what each round costs this peer, from one landing to the next, for parts that adapt to the cost.

    compute_s = (median seconds per inner step) · (inner steps);  hidden_s = τ · (median seconds per inner step)

    The median ignores evaluations and checkpoints, which also run between two inner steps.

    Args:
        exchange: provides the transfer time and the bytes sent.
        delay: the schedule's delay τ, in inner steps.
        step_s: seconds that the schedule counts as one inner step, or 0 if it counts the inner steps themselves.
    """

    def __init__(self, exchange: Exchange, *, delay: int, step_s: float) -> None:
        self.traffic, self.delay, self.step_s = metered(exchange), delay, step_s
        self.began_s: float | None = None
        self.steps_s: list[float] = []
        self.transfer_before_s, self.bytes_before = 0.0, 0

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """Mark the end of an inner step on entry, and the start of the next inner step on exit.

        The first inner step is not measured, because its start is unknown.
        """
        if self.began_s is not None:
            self.steps_s.append(time.perf_counter() - self.began_s)
        try:
            yield
        finally:
            self.began_s = time.perf_counter()

    def cost(self, codec_s: float) -> RoundCost:
        """Return the cost since the last call. `codec_s`: seconds spent on launching and landing."""
        step_s = statistics.median(self.steps_s) if self.steps_s else 0.0
        transfer_s, bytes_sent = self.traffic.transfer_s, self.traffic.bytes_sent
        cost = RoundCost(
            compute_s=step_s * len(self.steps_s),
            codec_s=codec_s,
            hidden_s=self.delay * (self.step_s or step_s),
            transfer_s=transfer_s - self.transfer_before_s,
            bytes_sent=bytes_sent - self.bytes_before,
        )
        self.steps_s, self.transfer_before_s, self.bytes_before = [], transfer_s, bytes_sent
        return cost


@dataclass(frozen=True)
class RoundReport:
    """The outcome and cost of one landed or failed round.

    samples: number of training samples that contribute to this peer's message.
    payload_bytes: size of this peer's message.
    launch_s, wait_s, land_s: time spent on launching, waiting for contributions, and landing.
    delta_norm, mean_norm: L2 norms of the pseudo-gradient Δ and the aggregate ḡ.
    slow_hash: hash of the slow weights after the round.
    peers: the peers whose messages are included.
    commit: hash of the round's commit, in hexadecimal; "" if the round failed or the exchange has no chain of commits.
    diverged: peers whose slow weights differ from those of most peers.
    refused: one line for each message that does not count: its peer, and the reason.
    notes: one line for each part that adapted (what changes in later rounds, and why), and one line if slow weights
        differ but too few hashes are known to decide whose are right.
    transfer_s: the part of `wait_s` during which payloads were being transferred. The rest was spent waiting for other
        peers: until slower peers had finished computing, until the grace period for missing peers was over, or until
        the participants were agreed on.
    failed: why the round failed, or "" if it landed.
    blob: the message that this peer sent.
    """

    round: Round
    samples: int
    payload_bytes: int
    launch_s: float
    wait_s: float
    delta_norm: float
    slow_hash: int
    peers: tuple[str, ...] = ()
    commit: str = ""
    diverged: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    land_s: float = 0.0
    mean_norm: float = 0.0
    transfer_s: float = 0.0
    failed: str = ""
    blob: bytes = field(default=b"", repr=False)

    def __str__(self) -> str:
        """Return one line: "round 3: 2 peers, payload 6,120 bytes, waited 1.2 s", or why the round failed."""
        if self.failed:
            return f"{self.round} failed: {self.failed}"
        peers = f"{len(self.peers)} peer{'s' * (len(self.peers) != 1)}"
        refused = f", {len(self.refused)} refused" if self.refused else ""
        return f"{self.round}: {peers}, payload {self.payload_bytes:,} bytes, waited {self.wait_s:.1f} s{refused}"

    @property
    def peer_wait_s(self) -> float:
        """Seconds that this peer waited for other peers, excluding transfers."""
        return self.wait_s - self.transfer_s

    def charts(self, *, bytes_sent: int) -> dict[str, float]:
        """Return a mapping from chart name to value, for loggers.

        `bytes_sent`: bytes that this peer has sent since the run began.
        """
        values = {"bytes_sent": bytes_sent, "peers": len(self.peers)}
        return {chart: values[field] if field in values else getattr(self, field) for field, chart in CHARTS.items()}
