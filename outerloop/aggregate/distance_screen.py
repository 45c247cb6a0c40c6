"""How far a partner's weights may be from those of the peer that averages with them (gossip: NoLoCo).

Partners send weights, which pull this peer i towards them, and a pair has no middle that one of the two does not set.
So what is usual comes from this peer's own past. For a fragment, with φ_i its slow weights and θ_j what partner j sent
(θ_j and φ_j stacked, where a method sends both, against φ_i twice):

    d_j = ‖θ_j − φ_i‖       d_i = ‖θ_i − φ_i‖, what this peer's own inner steps moved
    D   largest d_i so far
    h   lower median of the last 4 accepted distances, each after clipping
    r = min(max(h, d_i), 8 D)

    refused    d_j > 32 r,  or  d_j > 2⁶⁰
    clipped    θ_j ← φ_i + (θ_j − φ_i) · min(1, 4 r / d_j)

Before the first partner there is no h: a replica that began with equal weights is about as far as d_i. What a clipped
partner adds to h is 4 r at most, so h follows replicas that really drift apart, by a factor of four in a few rounds. 8
D ends that, since no partner sets D: whoever is met, and however often, a round moves this peer by a multiple of what
its own longest round did. A refused partner leaves the round a solo step. Where nothing has moved and nobody was met,
r is 0 and nothing pulls.

At the end whole replicas are averaged (replica_average.py) by the same rules, with r² = Σ min(max(h, D), 8 D)² over
fragments: what anybody says at the end does not change r.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from outerloop.aggregate.median_clip import factors_of
from outerloop.aggregate.norm_screen import LONGEST, Measured, NormScreen, median

GROWTH = 4.0
"""Times r. A partner's distance is about √2 times that of equal work, more where machines are of unequal speed: who
takes five rounds in the time of one is met five rounds away."""
REFUSED = 32.0
"""Times r. No machine is so much faster than its partners; weights of another scale are hundreds of times as far."""
DRIFT = 8.0
"""Times D: so that what counts of a partner, 4 r, is 32 of this peer's own longest rounds at most."""
Who = TypeVar("Who")


class DistanceScreen(NormScreen):
    """The rules above. Norms that are measured are distances from this peer's slow weights (core/pipeline_dense.py).

    `landed` holds the distances of partners that counted, which differ from peer to peer.
    """

    def __init__(self, *, on: bool) -> None:
        super().__init__(on=on)
        self.longest: dict[int, float] = {}

    def refusals(self, round: Measured) -> dict[int, str]:
        """Place of each contribution that does not count -> why, in one line."""
        return too_far(self.partners(round), self.usual(round))

    def factors(self, round: Measured) -> list[float]:
        """Return the factor, at most 1, that shortens each difference from this peer's weights; 1 for its own."""
        if not self.on:
            return [1.0] * len(round.samples)
        factors = factors_of(round.norms, GROWTH * self.usual(round))
        return [1.0 if place == round.own else factor for place, factor in enumerate(factors)]

    def weights(self, round: Measured) -> list[int]:
        """n_p as they are said: weights are averaged without them."""
        return round.samples

    def learn(self, round: Measured) -> None:
        """These contributions have landed."""
        if not self.on:
            return
        usual = self.usual(round)
        self.longest[round.fragment] = self.longest_in(round)
        if counted := [min(d, GROWTH * usual) for d in self.partners(round).values() if d > 0 < usual]:
            self.remember(round.fragment, counted)

    def usual(self, round: Measured) -> float:
        """r."""
        own = 0.0 if round.own is None else round.norms[round.own]
        return min(max(self.before(round.fragment), own), DRIFT * self.longest_in(round))

    def usual_of_replicas(self) -> float:
        """r between whole replicas."""
        each = [min(max(self.before(fragment), d), DRIFT * d) for fragment, d in self.longest.items()]
        return math.hypot(*each)

    def longest_in(self, round: Measured) -> float:
        """D, this round's d_i included."""
        own = 0.0 if round.own is None else round.norms[round.own]
        return max(self.longest.get(round.fragment, 0.0), own)

    def before(self, fragment: int) -> float:
        """h, or 0 where no partner has counted yet."""
        return median(self.landed.get(fragment, ()))

    def state_dict(self) -> dict[str, Any]:
        """The distances that are remembered, by fragment; each peer has its own."""
        return super().state_dict() | {"longest": dict(self.longest)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` returned; of an older run, which knew no D, h is taken for it."""
        super().load_state_dict(state)
        older = {fragment: self.before(fragment) for fragment in self.landed}
        longest = {int(fragment): float(d) for fragment, d in state.get("longest", older).items()}
        if not all(0 <= d <= LONGEST for d in longest.values()):
            raise ValueError("a distance of own inner steps is negative or not finite")
        self.longest = longest

    @staticmethod
    def partners(round: Measured) -> dict[int, float]:
        """Place of each partner -> its distance."""
        return {place: d for place, d in enumerate(round.norms) if place != round.own}


def too_far(distances: Mapping[Who, float], usual: float) -> dict[Who, str]:
    """Return who is too far away, and why, where distances as long as `usual` (r) are expected."""
    bound = REFUSED * usual if usual else LONGEST
    return {
        who: f"its weights are {d:.3g} from those here, more than {REFUSED:.0f} times the usual {usual:.3g}"
        for who, d in distances.items()
        if not d <= min(LONGEST, bound)
    }
