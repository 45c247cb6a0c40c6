"""Limit how far a gossip partner's weights may be from this peer's own before the two are averaged (NoLoCo).

Let i be this peer. Averaging pulls its weights towards those of its partners. In a pair, each of the two peers alone
could set the median of their two distances. So the usual distance r is computed from this peer's own progress, and from
earlier partners within a fixed multiple of it. For a fragment, let φ_i be the slow weights of this peer, θ_i its
weights after its inner steps, and θ_j the weights that partner j sent. If a method sends both θ_j and φ_j, they are
stacked, and both are compared with φ_i.

    d_j = ‖θ_j − φ_i‖       d_i = ‖θ_i − φ_i‖, how far this peer's own inner steps moved its weights
    D   largest d_i so far
    h   lower median of the distances of the last 4 accepted partners, after clipping; 0 before the first one
    r = min(max(h, d_i), 8 D)

    refused    d_j > 32 r > 0,  or  d_j > 2⁶⁰
    clipped    θ_j ← φ_i + (θ_j − φ_i) · min(1, 4 r / d_j)

For the first partner, r is d_i, which is about the distance of a replica that started from the same weights.

The distance of a clipped partner enters h as 4 r. So if replicas really drift apart, h can grow by a factor of four in
a few rounds. The limit 8 D ends this growth, because partners do not influence D: they cannot move this peer by more
than a fixed multiple of D in one round.

If the partner is refused, the round becomes a solo step. Until this peer has moved or accepted a partner, r is 0 and
partners have no effect.

At the end of the run, whole replicas are averaged (core/replica_average.py) by the same rules. There,
r² = Σ min(max(h, D), 8 D)² over fragments, so nothing that a peer sends at the end changes r.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from outerloop.aggregate.median_clip import factors_of, median
from outerloop.aggregate.norm_screen import LONGEST, Measured, NormScreen, describe_limit

GROWTH = 4.0
"""Clipping limit, as a multiple of r. After equal work, a partner is about √2 r away. It is farther away if the
machines differ in speed: a peer that completes five rounds while its partner completes one moves about five times as
far."""
REFUSED = 32.0
"""Refusal limit, as a multiple of r. No machine is 32 times as fast as its partners, but weights of a different scale
are far beyond this limit."""
DRIFT = 8.0
"""Upper limit on r, as a multiple of D. A clipped distance, at most 4 r, is thus at most 32 times the longest d_i."""
Who = TypeVar("Who")


class DistanceScreen(NormScreen):
    """Screen the weights of gossip partners by the rules in the module docstring.

    The norms in `Measured` are distances from this peer's slow weights (core/pipeline/dense.py). The attribute `landed`
    contains the distances of accepted partners, which differ between peers.
    """

    def __init__(self, *, on: bool) -> None:
        super().__init__(on=on)
        self.longest: dict[int, float] = {}

    def refusals(self, round: Measured) -> dict[int, str]:
        """Return the one-line reason for each refused contribution, by index."""
        return too_far(self.partners(round), self.usual(round))

    def factors(self, round: Measured) -> list[float]:
        """Return one factor per contribution, at most 1, for the difference between it and this peer's weights.

        The factor of this peer's own contribution is 1.
        """
        if not self.on:
            return [1.0] * len(round.samples)
        factors = factors_of(round.norms, GROWTH * self.usual(round))
        return [1.0 if index == round.own else factor for index, factor in enumerate(factors)]

    def weights(self, round: Measured) -> list[int]:
        """Return the sample counts unchanged, because averaging weights does not use them."""
        return round.samples

    def observe(self, round: Measured) -> None:
        """Store the distances of a round that has landed."""
        if not self.on:
            return
        usual = self.usual(round)
        self.longest[round.fragment] = self.longest_in(round)
        if counted := [min(d, GROWTH * usual) for d in self.partners(round).values() if d > 0 and usual > 0]:
            self.remember(round.fragment, counted)

    def usual(self, round: Measured) -> float:
        """Return r, the usual distance between this peer and a partner. Both limits are multiples of it."""
        own = 0.0 if round.own is None else round.norms[round.own]
        return min(max(self.before(round.fragment), own), DRIFT * self.longest_in(round))

    def usual_of_replicas(self) -> float:
        """Return the usual distance r between whole replicas, or infinity if distances are not screened."""
        if not self.on:
            return math.inf
        each = [min(max(self.before(fragment), d), DRIFT * d) for fragment, d in self.longest.items()]
        return math.hypot(*each)

    def longest_in(self, round: Measured) -> float:
        """Return D, the largest distance that inner steps have moved this peer's weights by, including this round."""
        own = 0.0 if round.own is None else round.norms[round.own]
        return max(self.longest.get(round.fragment, 0.0), own)

    def before(self, fragment: int) -> float:
        """Return h, the lower median of the last accepted distances, or 0 before the first accepted partner."""
        return median(self.landed.get(fragment, ()))

    def state_dict(self) -> dict[str, Any]:
        """Return the stored distances by fragment. They differ between peers."""
        return super().state_dict() | {"longest": dict(self.longest)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state returned by `state_dict`. An older state may lack `longest`; the median distances replace it."""
        super().load_state_dict(state)
        older = {fragment: self.before(fragment) for fragment in self.landed}
        longest = {int(fragment): float(d) for fragment, d in state.get("longest", older).items()}
        if not all(0 <= d <= LONGEST for d in longest.values()):
            raise ValueError("a stored distance of this peer's inner steps is negative, too large or not finite")
        self.longest = longest

    @staticmethod
    def partners(round: Measured) -> dict[int, float]:
        """Return the distance of each partner, by index of its contribution."""
        return {index: d for index, d in enumerate(round.norms) if index != round.own}


def too_far(distances: Mapping[Who, float], usual: float) -> dict[Who, str]:
    """Return partner -> reason for each partner whose weights are too far away. `usual`: the usual distance r."""
    bound = REFUSED * usual if usual else LONGEST
    return {
        who: f"its weights are {d:.3g} away from this peer's, more than {describe_limit(REFUSED, usual)}"
        for who, d in distances.items()
        if not d <= min(LONGEST, bound)
    }
