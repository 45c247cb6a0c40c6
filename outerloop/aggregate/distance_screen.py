"""Limit how far a partner's weights may be from those of the peer that averages with them (gossip: NoLoCo).

Partners send weights, which pull this peer i towards them. In a pair one of the two would set the median, so the usual
distance is taken from this peer's own past instead. For a fragment, with φ_i the slow weights of this peer and θ_j the
weights that partner j sent (θ_j and φ_j stacked if a method sends both, compared with φ_i twice):

    d_j = ‖θ_j − φ_i‖       d_i = ‖θ_i − φ_i‖, how far this peer's own inner steps moved
    D   largest d_i so far
    h   lower median of the last 4 accepted distances, each after clipping
    r = min(max(h, d_i), 8 D)

    refused    d_j > 32 r,  or  d_j > 2⁶⁰
    clipped    θ_j ← φ_i + (θ_j − φ_i) · min(1, 4 r / d_j)

Before the first partner there is no h: a replica that started from equal weights is about d_i away. A clipped partner
adds at most 4 r to h, so h can follow replicas that really drift apart, growing by a factor of four in a few rounds.
The limit 8 D ends this growth, since partners do not influence D: whichever partners this peer meets, and however
often, a round moves it by at most a fixed multiple of its longest round. If the partner is refused, the round
becomes a solo step. Until this peer has moved or accepted a partner, r is 0 and partners have no effect.

At the end of the run whole replicas are averaged (replica_average.py) by the same rules, with
r² = Σ min(max(h, D), 8 D)² over fragments: nothing that a peer sends at the end changes r.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from outerloop.aggregate.median_clip import factors_of
from outerloop.aggregate.norm_screen import LONGEST, Measured, NormScreen, median

GROWTH = 4.0
"""Multiple of r. A partner's distance is about √2 times that of equal work, and more if machines differ in speed: a
peer that takes five rounds in the time of one is five rounds away when they meet."""
REFUSED = 32.0
"""Multiple of r. No machine is that much faster than its partners; weights of another scale are far beyond it."""
DRIFT = 8.0
"""Multiple of D: a partner's clipped distance, 4 r, is at most 32 times this peer's own longest round."""
Who = TypeVar("Who")


class DistanceScreen(NormScreen):
    """The screen of weights in gossip: the rules above.

    The measured norms are distances from this peer's slow weights (core/pipeline/dense.py). `landed` holds the
    distances of accepted partners, which differ from peer to peer.
    """

    def __init__(self, *, on: bool) -> None:
        super().__init__(on=on)
        self.longest: dict[int, float] = {}

    def refusals(self, round: Measured) -> dict[int, str]:
        """Return index -> one-line reason for each refused contribution."""
        return too_far(self.partners(round), self.usual(round))

    def factors(self, round: Measured) -> list[float]:
        """Return the factor, at most 1, that shortens each difference from this peer's weights; 1 for its own."""
        if not self.on:
            return [1.0] * len(round.samples)
        factors = factors_of(round.norms, GROWTH * self.usual(round))
        return [1.0 if index == round.own else factor for index, factor in enumerate(factors)]

    def weights(self, round: Measured) -> list[int]:
        """Return n_p as reported: the average of weights does not use them."""
        return round.samples

    def observe(self, round: Measured) -> None:
        """Remember the distances of a round that has landed."""
        if not self.on:
            return
        usual = self.usual(round)
        self.longest[round.fragment] = self.longest_in(round)
        if counted := [min(d, GROWTH * usual) for d in self.partners(round).values() if d > 0 < usual]:
            self.remember(round.fragment, counted)

    def usual(self, round: Measured) -> float:
        """Return r."""
        own = 0.0 if round.own is None else round.norms[round.own]
        return min(max(self.before(round.fragment), own), DRIFT * self.longest_in(round))

    def usual_of_replicas(self) -> float:
        """Return r between whole replicas; infinite if distances are not screened."""
        if not self.on:
            return math.inf
        each = [min(max(self.before(fragment), d), DRIFT * d) for fragment, d in self.longest.items()]
        return math.hypot(*each)

    def longest_in(self, round: Measured) -> float:
        """Return D, including this round's d_i."""
        own = 0.0 if round.own is None else round.norms[round.own]
        return max(self.longest.get(round.fragment, 0.0), own)

    def before(self, fragment: int) -> float:
        """Return h, or 0 before the first accepted partner."""
        return median(self.landed.get(fragment, ()))

    def state_dict(self) -> dict[str, Any]:
        """Return the remembered distances by fragment; they differ from peer to peer."""
        return super().state_dict() | {"longest": dict(self.longest)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned. The state of an older run has no D: h is used instead."""
        super().load_state_dict(state)
        older = {fragment: self.before(fragment) for fragment in self.landed}
        longest = {int(fragment): float(d) for fragment, d in state.get("longest", older).items()}
        if not all(0 <= d <= LONGEST for d in longest.values()):
            raise ValueError("a distance of this peer's inner steps is negative, too large or not finite")
        self.longest = longest

    @staticmethod
    def partners(round: Measured) -> dict[int, float]:
        """Return index -> distance for each partner."""
        return {index: d for index, d in enumerate(round.norms) if index != round.own}


def too_far(distances: Mapping[Who, float], usual: float) -> dict[Who, str]:
    """Return the partners that are too far away, with the reason. `usual`: the expected distance r."""
    bound = REFUSED * usual if usual else LONGEST
    return {
        who: f"its weights are {d:.3g} away from this peer's, more than {REFUSED:.0f} times the usual {usual:.3g}"
        for who, d in distances.items()
        if not d <= min(LONGEST, bound)
    }
