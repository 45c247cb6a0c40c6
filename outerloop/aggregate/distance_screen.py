"""How far a partner's weights may be from those of the peer that averages with them (gossip: NoLoCo).

Partners send weights, which pull this peer i towards them, and a pair has no middle that one of the two does not set.
So what is usual comes from this peer's own past. For a fragment, with φ_i its slow weights and θ_j what partner j sent
(θ_j and φ_j stacked, where a method sends both, against φ_i twice):

    d_j = ‖θ_j − φ_i‖       d_i = ‖θ_i − φ_i‖, what this peer's own inner steps moved
    h   lower median of the last 4 distances of partners that counted, as far as they counted
    r = max(h, d_i)

    refused    d_j > 32 r,  or  d_j > 2⁶⁰
    clipped    θ_j ← φ_i + (θ_j − φ_i) · min(1, 4 r / d_j)

Before the first partner there is no h: a replica that began with equal weights is about as far as d_i. What a clipped
partner adds to h is 4 r at most, so h follows replicas that really drift apart, by a factor of four in a few rounds.
A refused partner leaves the round a solo step. Where nothing has moved and nobody was met, r is 0 and nothing pulls.
"""

from __future__ import annotations

from outerloop.aggregate.median_clip import factors_of
from outerloop.aggregate.norm_screen import LONGEST, Measured, NormScreen, median

GROWTH = 4.0
"""Times r. A partner's distance is about √2 times that of equal work, more where machines are of unequal speed: who
takes five rounds in the time of one is met five rounds away."""
REFUSED = 32.0
"""Times r. No machine is so much faster than its partners; weights of another scale are hundreds of times as far."""


class DistanceScreen(NormScreen):
    """The rules above. Norms that are measured are distances from this peer's slow weights (routes/plain.py).

    `landed` holds the distances of partners that counted, which differ from peer to peer.
    """

    def refusals(self, round: Measured) -> dict[int, str]:
        """Place of each contribution that does not count -> why, in one line."""
        usual = self.usual(round)
        bound = REFUSED * usual if usual else LONGEST
        return {
            place: f"its weights are {d:.3g} from those here, more than {REFUSED:.0f} times the usual {usual:.3g}"
            for place, d in self.partners(round).items()
            if not d <= min(LONGEST, bound)
        }

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
        limit = GROWTH * self.usual(round)
        if counted := [min(d, limit) for d in self.partners(round).values() if min(d, limit) > 0]:
            self.remember(round.fragment, counted)

    def usual(self, round: Measured) -> float:
        """r."""
        return max(self.before(round.fragment), 0.0 if round.own is None else round.norms[round.own])

    def before(self, fragment: int) -> float:
        """h, or 0 where no partner has counted yet."""
        return median(self.landed.get(fragment, ()))

    @staticmethod
    def partners(round: Measured) -> dict[int, float]:
        """Place of each partner -> its distance."""
        return {place: d for place, d in enumerate(round.norms) if place != round.own}
