"""A round on its way, and the account of one that has landed or failed."""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from outerloop.protocols import Exchange, Pending
from outerloop.types import Contribution, Made, Round, Tensors

CHARTS = {
    "payload_bytes": "outer/payload_bytes",
    "bytes_sent": "outer/bytes_sent",
    "wait_s": "outer/wait_s",
    "land_s": "outer/land_s",
    "peers": "outer/peers",
    "delta_norm": "outer/delta_norm",
    "mean_norm": "outer/mean_norm",
}
"""What is told of a round -> name of its chart, in whichever logger."""
SPENT = "compute_s", "communication_s", "others_s"
"""Where the time of a worker goes."""


@dataclass(frozen=True)
class InFlight:
    """A launched round: what was offered to the compressor, the message that left, the exchange that carries it.

    `launch_s`: seconds that inner steps stood still for it. `then`: copies of the fast weights at the launch, where
    landing needs them. Tensors and message are left out of the repr.
    """

    round: Round
    offered: Tensors = field(repr=False)
    blob: bytes = field(repr=False)
    pending: Pending
    samples: int
    launch_s: float
    delta_norm: float
    then: Tensors = field(default_factory=dict, repr=False)

    def state_dict(self) -> dict[str, Any]:
        """Everything but the exchange, which is started anew from the same message."""
        return {
            "round": [self.round.number, self.round.fragment],
            "offered": self.offered,
            "blob": self.blob,
            "samples": self.samples,
            "delta_norm": self.delta_norm,
            "then": self.then,
        }

    @classmethod
    def resumed(cls, saved: dict[str, Any], exchange: Exchange) -> InFlight:
        """What `state_dict` returned, offered to the exchange again."""
        round = Round(*saved["round"])
        pending = exchange.start(saved["blob"], round)
        return cls(**saved | {"round": round}, pending=pending, launch_s=0.0)

    def report(self, slow_hash: int, **outcome: Any) -> RoundReport:
        """The account of this round, now that it has landed or failed."""
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
    """A round that is made ready while inner steps go on, which have stood still for `still_s` seconds so far.

    `copied` is done when the model has been read, `ready` when the round is on its way.
    """

    copied: Future[Any]
    ready: Future[InFlight]
    still_s: float

    def until(self, done: Future[Made]) -> Made:
        """What comes of one of the two, which inner steps stand still for. Raises what went wrong there."""
        began_s = time.perf_counter()
        try:
            return done.result()
        finally:
            self.still_s += time.perf_counter() - began_s

    def flight(self) -> InFlight:
        """The round once it is on its way. Raises what went wrong there."""
        flight = self.until(self.ready)
        return replace(flight, launch_s=self.still_s)


@dataclass(frozen=True)
class ReceivedRound:
    """All that came in a round, from when to when it was waited for, and how long of that something moved. Seconds."""

    received: list[Contribution] = field(repr=False)
    began_s: float
    at_s: float
    moving_s: float

    @property
    def waited_s(self) -> float:
        """As long as the landing stood still."""
        return self.at_s - self.began_s


@dataclass(frozen=True)
class RoundReport:
    """What one landed or failed round cost. Seconds, bytes, L2 norms; `failed` says why, or is empty.

    `moved_s`: of `wait_s`, while payloads were on their way; the rest is waiting for others: for those that compute
    longer, the grace for those that do not come, the agreement on who takes part.
    `blob` is the message that left this peer, which the repr leaves out. `diverged`: those of `peers` whose slow
    weights were not those of most; `refused` says whose messages could not be landed, and why; `notes` what is done
    otherwise from now on, and why.
    """

    round: Round
    samples: int
    payload_bytes: int
    launch_s: float
    wait_s: float
    delta_norm: float
    slow_hash: int
    peers: tuple[str, ...] = ()
    diverged: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    land_s: float = 0.0
    mean_norm: float = 0.0
    moved_s: float = 0.0
    failed: str = ""
    blob: bytes = field(default=b"", repr=False)

    @property
    def others_s(self) -> float:
        """Seconds that this peer waited for others."""
        return self.wait_s - self.moved_s

    def charts(self, *, bytes_sent: int) -> dict[str, float]:
        """Name of a chart -> its value. `bytes_sent`: by this peer since the run began."""
        values = {"bytes_sent": bytes_sent, "peers": len(self.peers)}
        return {chart: values[field] if field in values else getattr(self, field) for field, chart in CHARTS.items()}


def utilization(*, compute_s: float, communication_s: float, others_s: float) -> float:
    """compute / (compute + communication + waiting for others), 0 .. 1; of nothing at all 1."""
    total_s = compute_s + communication_s + others_s
    return compute_s / total_s if total_s else 1.0
