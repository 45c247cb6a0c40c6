"""Apply eager updates (arXiv 2502.12996): at a landing, replace this peer's contribution with its newest one, Δ_now.

at the first launch, before any round has landed:   ḡ = Δ_now / P
at a landing:                                       ḡ + (Δ_now − Δ_then) / P

P is the number of peers, and ḡ the aggregate of a round. Δ_then is this peer's contribution to the round that lands,
Δ_now its contribution to the next round.

The slow weights of two peers always differ by their contributions to the round in flight, which its landing replaces
with the mean. So every round must land: a failed round ends the run (loop.py).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from outerloop.core.launch import RoundLauncher
from outerloop.core.pipeline.values import AggregatedRound
from outerloop.core.round import InFlight
from outerloop.protocols import OuterMethod
from outerloop.types import Round


class EagerUpdates:
    """Applies eager updates (arXiv 2502.12996) to one replica."""

    def __init__(self, launcher: RoundLauncher, *, method: OuterMethod) -> None:
        self.launcher, self.method = launcher, method

    @torch.no_grad()
    def begin(self, flight: InFlight, peers: int) -> None:
        """Apply this peer's update divided by `peers` right after the first launch, before any round has landed."""
        mean, replica = {name: x / peers for name, x in flight.update.items()}, self.launcher.replica
        self.method.update(replica.slow, mean, {})
        self.launcher.pipeline.write(mean, {})
        replica.update_hashes(mean)

    def refreshed(self, aggregated: AggregatedRound, flight: InFlight) -> AggregatedRound:
        """Return the aggregate with this peer's contribution replaced by its contribution to the next round."""
        now = self.launcher.in_flight[Round(flight.round.number + 1, flight.round.fragment)].update
        then, peers = flight.update, len(aggregated.messages)
        mean = {name: x + (now[name] - then[name]) / peers for name, x in aggregated.mean.items()}
        return replace(aggregated, mean=mean)
