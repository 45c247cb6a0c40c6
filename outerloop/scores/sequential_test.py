"""Decide from the values of many rounds that a peer does less than others: a sequential likelihood-ratio test.

    m_t   expected value: median of the latest values of the other peers
    h_t   = ρ m_t, the smallest value that still counts as honest
    e_t   = error of v_t
    Λ_t   = min(0, Λ_{t-1}) + (h_t v_t − h_t² / 2) / e_t²            if h_t > 0, else Λ_{t-1};   Λ_0 = 0
    the peer is named when  Λ_t ≤ ln α;  α = FALSE_ALARM

v_t is the peer's gain in its t-th score (gain.py). Each term is the logarithm of the likelihood of v_t for a mean of
h_t, minus that for a mean of 0, if v_t is normal with standard deviation e_t. A good score does not make up for later
bad ones, because Λ restarts from 0 (Page's test, CUSUM).

False alarms: if the peer's true value is at least h_t, a term τ has E[exp(−τ)] ≤ 1, because for v ~ N(μ, e²)
E[exp(−(h v − h² / 2) / e²)] = exp(h (h − μ) / e²). So from any restart on, exp(−Λ) is a nonnegative supermartingale
that begins at 1 and, by Ville's inequality, ever reaches 1 / α with probability at most α. In n scores, an honest peer
is named with probability at most n α, by one evaluator. A peer with a true value of m_t has E[exp(−θ τ)] = 1 at
θ = 2 / ρ − 1, so that α^θ takes the place of α: with α = 10⁻⁴ and ρ = 0.9, about 10⁻⁵ per score. e_t and m_t are
measured and values are only nearly normal, so all of this holds approximately.

Delay: for a true value of 0, a term has the mean −(ρ m / e)² / 2 and the standard deviation ρ m / e. With
m / e = 2.8, as measured with 60 assigned and 64 other windows, and ρ = 0.9, the mean is −3.2, so that ln α = −9.2 takes
about 3 scores.

The median is that of honest peers only while most of the scored peers are honest.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Mapping

from outerloop.scores.gain import Gain

FALSE_ALARM = 1e-4
LATEST = 16
"""Number of latest values of other peers from which the median is computed."""
FEWEST_OTHERS = 3
"""Minimum number of other peers with a known value; the median of three withstands one liar."""


class TrainingTest:
    """The tests of all peers that one evaluator scores.

    Args:
        share: ρ, 0 .. 1.

    Attributes:
        evidence: peer -> Λ.
        scores: peer -> number of values so far.
        named: peers whose Λ has reached ln α.
    """

    def __init__(self, *, share: float) -> None:
        self.share = share
        self.latest: deque[tuple[str, float]] = deque(maxlen=4 * LATEST)
        self.evidence: dict[str, float] = defaultdict(float)
        self.scores: dict[str, int] = defaultdict(int)
        self.named: set[str] = set()

    def observe(self, values: Mapping[str, Gain]) -> list[str]:
        """Add the values of one round, by peer. Return the peers that are named for the first time, sorted."""
        self.latest.extend((peer, value.value) for peer, value in values.items())
        for peer, value in values.items():
            self.scores[peer] += 1
            if (least := self.share * self.usual(peer)) > 0:
                term = (least * value.value - least**2 / 2) / value.error**2
                self.evidence[peer] = min(0.0, self.evidence[peer]) + term
        new = sorted(p for p in values if self.evidence[p] <= math.log(FALSE_ALARM) and p not in self.named)
        self.named.update(new)
        return new

    def usual(self, peer: str) -> float:
        """Return m: the median of the latest values of all peers but this one, or 0 while too few have been scored."""
        others = [(other, value) for other, value in self.latest if other != peer][-LATEST:]
        enough = len({other for other, _ in others}) >= FEWEST_OTHERS
        return statistics.median(value for _, value in others) if enough else 0.0
