"""Decide from the values of many rounds that a peer does less than others: a sequential likelihood-ratio test.

    m_t   expected value: median of the latest values of the other peers
    h_t   = ρ m_t, the smallest value that still counts as honest
    e_t   = max(error of v_t, median error of those latest values)
    Λ_t   = min(0, Λ_{t-1}) + (h_t v_t − h_t² / 2) / e_t²            if h_t > 0, else Λ_{t-1};   Λ_0 = 0
    the peer is named when  Λ_t ≤ ln α;  α = FALSE_ALARM

v_t is the peer's value in its t-th score: its gain (gain.py), or its effect on other windows. Each term is the
logarithm of the likelihood of v_t for a mean of h_t, minus that for a mean of 0, if v_t is normal with standard
deviation e_t. A good score does not make up for later bad ones, because Λ restarts from 0 (Page's test, CUSUM).

False alarms: if the peer's true value is at least h_t, a term τ has E[exp(−τ)] ≤ 1, because for v ~ N(μ, e²)
E[exp(−(h v − h² / 2) / e²)] = exp(h (h − μ) / e²). So from any restart on, exp(−Λ) is a nonnegative supermartingale
that begins at 1 and, by Ville's inequality, ever reaches 1 / α with probability at most α. In n scores, an honest peer
is named with probability at most n α, by one evaluator. A peer with a true value of m_t has E[exp(−θ τ)] = 1 at
θ = 2 / ρ − 1, so that α^θ takes the place of α: with α = 10⁻³ and ρ = 0.75, about 10⁻⁵ per score. e_t and m_t are
measured and values are only nearly normal, so all of this holds approximately.

Delay: for a true value of 0, a term has the mean −(ρ m / e)² / 2 and the standard deviation ρ m / e. With m / e = 2 and
ρ = 0.75, the mean is −1.1, so that ln α = −6.9 takes about 6 scores.

The median is that of honest peers only while most of the scored peers are honest.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Mapping

from outerloop.scores.gain import Gain

FALSE_ALARM = 1e-3
LATEST = 16
"""Number of latest values of other peers from which median and spread are computed."""
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
        self.latest: deque[tuple[str, Gain]] = deque(maxlen=4 * LATEST)
        self.evidence: dict[str, float] = defaultdict(float)
        self.scores: dict[str, int] = defaultdict(int)
        self.named: set[str] = set()

    def observe(self, values: Mapping[str, Gain]) -> list[str]:
        """Add the values of one round, by peer. Return the peers that are named for the first time, sorted."""
        self.latest.extend(values.items())
        for peer, value in values.items():
            self.scores[peer] += 1
            usual = self.usual(peer)
            if (least := self.share * usual.value) > 0:
                error = max(value.error, usual.error)
                term = (least * value.value - least**2 / 2) / error**2
                self.evidence[peer] = min(0.0, self.evidence[peer]) + term
        new = sorted(p for p in values if self.evidence[p] <= math.log(FALSE_ALARM) and p not in self.named)
        self.named.update(new)
        return new

    def usual(self, peer: str) -> Gain:
        """Return the medians of the latest values, and of their errors, of all peers but this one.

        Both are 0 while too few other peers have been scored.
        """
        others = [(other, value) for other, value in self.latest if other != peer][-LATEST:]
        if len({other for other, _ in others}) < FEWEST_OTHERS:
            return Gain(0.0, 0.0)
        return Gain(*(statistics.median(each) for each in zip(*((v.value, v.error) for _, v in others), strict=True)))
