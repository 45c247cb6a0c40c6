"""Refuse or clip contributions whose norm is too large, and limit the weight of each peer's samples.

Nothing verifies a contribution, and one whose norm is far larger than all others would dominate the outer step. For a
fragment and the peers p of a round, let ‖Δ̂_p‖ be the norm of p's contribution and n_p the number of samples that p
reports:

    m   lower median of the norms of this round, excluding zeros. A refused norm counts as larger than all others, but m
        is at most the largest norm that is not refused
    h   largest m of the last 4 landed rounds of this fragment
    s   lower median of the n_p, excluding zeros
    r   usual norm: m; with at most two norms max(m, h), and infinity while there is no h
    c   largest norm after clipping: min(m, 4 h), but 4 h with at most two norms, and m while there is no h

    refused    ‖Δ̂_p‖ > 5 r,  ‖Δ̂_p‖ > 2⁶⁰,  or  n_p > 2⁴⁰
    clipped    Δ̂_p ← Δ̂_p · min(1, c / ‖Δ̂_p‖)
    weight     n_p ← min(n_p, 4 s)

With two norms, one of the two peers alone could set the median. So with at most two norms, earlier rounds determine the
limits. Before any round has landed, two norms show only that they differ, not which of them is wrong: both count, and
the larger one is clipped to the smaller one. Norms of zero are not counted.

A peer whose contribution was refused discards its progress and its residual (core/land.py). What clipping removes is
not kept in the residual either. So a peer that missed rounds, and sends their progress at once, loses part of it.

This limits how far one contribution moves the slow weights, but not in which direction. The attacks that it stops and
those that it does not stop are in docs/explanation/threat-model.md. Everything is computed from norms that have the
same bits on all machines (exact_norms.py) and from rounds that all replicas have landed, so all peers refuse and clip
the same contributions. Clipping to the median is from Covenant-72B, arXiv 2603.08163.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from outerloop.aggregate.median_clip import factors_of, median

GROWTH = 4.0
"""Clipping limit, as a multiple of h. It is above 3 because, during a linear learning-rate warm-up, the second round's
norm is 3 times the first round's."""
REFUSED = 5.0
"""Refusal limit, as a multiple of r. The norms of workers that do equal work are within about 5 % of each other, and
norms grow more slowly than the number of inner steps. If rounds take equal time, a worker exceeds this limit only if it
is about 8 times as fast as the others."""
SAMPLES = 4
"""Limit on the sample count that determines a peer's weight, as a multiple of the round's median sample count."""
REMEMBERED = 4
"""Number of landed rounds per fragment whose norms are kept."""
LONGEST = 2.0**60
"""A norm that no honest contribution reaches. The squares of 200 such norms still sum to a finite float32."""
MAX_SAMPLES = 1 << 40
"""A sample count that no honest peer reaches between two rounds."""


@dataclass(frozen=True)
class Measured:
    """The input of a screen: the L2 norm and sample count of each contribution to a round, in peer-name order.

    fragment: the fragment that the round exchanges.
    refused: number of contributions that were already refused and are not in the lists.
    own: index of this peer's contribution, or None if this peer sent none or the screen does not need it.
    """

    fragment: int
    norms: list[float]
    samples: list[int]
    refused: int = 0
    own: int | None = None

    @property
    def median(self) -> float:
        """The lower median of the positive norms, where refused contributions count as larger than all others.

        It is at most the largest norm in the list, also if most contributions were refused.
        """
        norms = [norm for norm in self.norms if norm > 0]
        return min(median([*norms, *[math.inf] * self.refused]), max(norms, default=0.0))

    @property
    def has_middle(self) -> bool:
        """True if the median is over more than two norms, including refused ones, so that no peer alone can set it."""
        return sum(norm > 0 for norm in self.norms) + self.refused > 2


class NormScreen:
    """Screen pseudo-gradients by the rules in the module docstring.

    The attribute `landed` maps each fragment to the median norms of its last landed rounds. They are equal on all
    replicas.

    Args:
        on: whether to clip norms and to limit sample counts. If False, contributions are not changed, and their norms
            need not be measured.
    """

    def __init__(self, *, on: bool) -> None:
        self.on = on
        self.landed: dict[int, list[float]] = {}

    def refusals(self, round: Measured) -> dict[int, str]:
        """Return the one-line reason for each refused contribution, by index."""
        possible = [norm for norm in round.norms if norm <= LONGEST]
        beyond = len(round.norms) - len(possible)
        bounded = replace(round, norms=possible, refused=round.refused + beyond)
        usual = bounded.median if round.has_middle else self.usual_of_two(bounded)
        found = {}
        for index, (norm, n) in enumerate(zip(round.norms, round.samples, strict=True)):
            if n > MAX_SAMPLES:
                found[index] = f"it reports {n} samples, more than {MAX_SAMPLES}"
            elif not norm <= min(LONGEST, REFUSED * usual):
                found[index] = f"its norm is {norm:.3g}, more than {describe_limit(REFUSED, usual)}"
        return found

    def usual_of_two(self, round: Measured) -> float:
        """Return the usual norm of a round with at most two norms: infinity before the first landed round."""
        before = self.before(round.fragment)
        return max(round.median, before) if before else math.inf

    def factors(self, round: Measured) -> list[float]:
        """Return one factor per contribution, at most 1, that clips its norm to the largest allowed norm."""
        if not self.on:
            return [1.0] * len(round.samples)
        before = self.before(round.fragment)
        limits = [round.median] if round.has_middle or not before else []
        return factors_of(round.norms, min([*limits, GROWTH * before] if before else limits))

    def weights(self, round: Measured) -> list[int]:
        """Return each peer's sample count, limited to SAMPLES times the round's median."""
        return [min(n, SAMPLES * median(round.samples)) for n in round.samples] if self.on else round.samples

    def observe(self, round: Measured) -> None:
        """Store the median norm of a landed round.

        With at most two norms, nothing is stored in two cases: if they differ by more than a factor of REFUSED, because
        one of them must then be wrong, or if a contribution was refused before any norm of this fragment was stored.
        """
        norms = [norm for norm in round.norms if norm]
        too_different = bool(norms) and max(norms) > REFUSED * min(norms)
        unsure = too_different or (round.refused and not self.before(round.fragment))
        if norms and (round.has_middle or not unsure):
            self.remember(round.fragment, [round.median])

    def remember(self, fragment: int, norms: list[float]) -> None:
        """Store norms of a fragment, and keep only the last REMEMBERED ones."""
        self.landed[fragment] = [*self.landed.get(fragment, ()), *norms][-REMEMBERED:]

    def before(self, fragment: int) -> float:
        """Return the largest median norm of the fragment's last landed rounds, or 0 before the first landed round."""
        return max(self.landed.get(fragment, ()), default=0.0)

    def usual_of_replicas(self) -> float:
        """Return infinity: this screen is for replicas that stay equal, so their distances need no limit."""
        return math.inf

    def state_dict(self) -> dict[str, Any]:
        """Return the stored norms by fragment. They are equal on all peers that have landed the same rounds."""
        return {"landed": {fragment: list(norms) for fragment, norms in self.landed.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state returned by `state_dict`; an older state may lack norms. Raises ValueError if it is invalid."""
        landed = {int(fragment): [float(norm) for norm in norms] for fragment, norms in state.get("landed", {}).items()}
        if not all(0 < norm <= LONGEST for norms in landed.values() for norm in norms):
            raise ValueError("a stored norm of a landed round is not positive and finite")
        self.landed = {fragment: norms[-REMEMBERED:] for fragment, norms in landed.items()}


def describe_limit(times: float, usual: float) -> str:
    """Return the refusal limit in words: `times` times the usual value, or LONGEST if that is lower or `usual` is 0."""
    return f"{times:.0f} times the usual {usual:.3g}" if 0 < times * usual <= LONGEST else f"the maximum {LONGEST:.3g}"
