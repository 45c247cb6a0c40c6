"""Define the inputs of a simulation (fleet, method) and its result (step rate), in seconds, bytes and inner steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outerloop.plan.links import Links


@dataclass(frozen=True)
class Fleet:
    """A set of identical machines on identical links.

    step_s: mean duration of an inner step.
    spread: standard deviation of the logarithm of a factor on `step_s`, which is drawn for each peer and round.
    failures_per_hour: mean number of failures of one peer per hour.
    codec_s: seconds that one round spends launching and landing.
    """

    peers: int
    links: Links
    step_s: float
    spread: float = 0.0
    failures_per_hour: float = 0.0
    codec_s: float = 0.0


@dataclass(frozen=True)
class Method:
    """The properties of a recipe that determine its traffic and its memory use.

    sync_every: number of inner steps between two exchanges of the same fragment (H).
    delay: inner steps between launch and landing.
    fragments: number of parts of the model that are exchanged separately, each every `sync_every` steps.
    payload_bytes: size of one peer's message for one fragment.
    params: number of parameters in the model.
    memory: component -> bytes on the training device.
    state_bytes: size of the state that a new peer downloads.
    overrides: configuration overrides that the delay needs.
    """

    name: str
    exchange: Literal["gather", "gossip"]
    sync_every: int
    delay: int
    fragments: int
    payload_bytes: float
    params: float
    memory: dict[str, float]
    state_bytes: float
    overrides: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Return the name and H, as in "sparseloco, H 15"."""
        return f"{self.name}, H {self.sync_every}"

    @property
    def interval(self) -> float:
        """Return the number of inner steps between two launches."""
        return self.sync_every / self.fragments

    @property
    def bits_per_param(self) -> float:
        """Return the payload bits per parameter for one round of all fragments."""
        return 8 * self.fragments * self.payload_bytes / self.params

    @property
    def memory_bytes(self) -> float:
        """Return the total bytes of all components on the training device."""
        return sum(self.memory.values())


@dataclass(frozen=True)
class StepRate:
    """The result of a simulation: mean seconds per round, over all peers and rounds.

    A round lasts from one launch to the next.

    round_s: the duration of the inner steps plus `waiting_s` and `exposed_s`.
    steps: inner steps that a peer takes per round. Fewer than `Method.interval` if peers are late for rounds.
    exposed_s: time during which the exchange, the launch and the landing block the inner loop.
    waiting_s: time during which the inner loop waits for slower or absent peers.
    met: fraction of rounds in which a peer takes part in an exchange.
    """

    round_s: float
    steps: float
    exposed_s: float
    waiting_s: float
    met: float

    @property
    def stall_s(self) -> float:
        """Return the time per round in which the inner loop is blocked."""
        return self.exposed_s + self.waiting_s
