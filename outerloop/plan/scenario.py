"""What a plan is about: the fleet, and the methods in it. Seconds, bytes, and counts of inner steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outerloop.plan.links import Links


@dataclass(frozen=True)
class Fleet:
    """Equal machines on equal links.

    `step_s`: mean seconds of an inner step. `spread`: σ of the lognormal factor by which one peer's inner steps of one
    round differ from that. `failures_per_hour`: of one peer. `codec_s`: what launching and landing take in a round.
    """

    peers: int
    links: Links
    step_s: float
    spread: float = 0.0
    failures_per_hour: float = 0.0
    codec_s: float = 0.0


@dataclass(frozen=True)
class Method:
    """One recipe as the network sees it.

    `sync_every`: H. `delay`: inner steps between launch and landing. `fragments`: parts of the model that travel on
    their own, every H steps each. `payload_bytes`: one message of one fragment. `memory`: part -> bytes on the device;
    `state_bytes` of them are what a newcomer downloads.
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

    @property
    def interval(self) -> float:
        """Inner steps between two launches."""
        return self.sync_every / self.fragments

    @property
    def bits_per_param(self) -> float:
        """Of all fragments together, in one round of each."""
        return 8 * self.fragments * self.payload_bytes / self.params

    @property
    def memory_bytes(self) -> float:
        """All parts."""
        return sum(self.memory.values())


@dataclass(frozen=True)
class StepRate:
    """What a simulation finds: means over peers and rounds, in seconds, between two launches.

    `round_s` = inner steps + `waiting_s` for slower or absent peers + `exposed_s`: the exchange and what else the inner
    loop stands still for. `met`: share of the rounds in which a peer exchanged anything.
    """

    round_s: float
    exposed_s: float
    waiting_s: float
    met: float
