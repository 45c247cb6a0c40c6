"""Decide from the scores of many rounds that a peer scores lower than others: a sequential likelihood-ratio test.

    v_t   the peer's t-th score: a gain (gain.py) or a benefit (benefit.py)
    e_t   standard error of v_t
    m_t   expected score: the median over the other peers of the median of each one's latest scores. For benefits, it is
          at most 1, the benefit of the evaluator's own payload, and 1 while fewer than FEWEST_OTHERS other peers have
          been scored
    d_t   spread of true scores between honest payloads. It is 0 for gains. For benefits it is max(d, 1.48 · D), where D
          is the median over the other peers of the median of |x − m_t| over each one's latest scores x, and d while
          fewer than FEWEST_OTHERS other peers have been scored
    h_t   = ρ m_t, the lowest score that still counts as honest
    τ_t   = (h_t v_t − h_t² / 2) / (e_t² + d_t²)
    Λ_t   = min(0, Λ_{t-1}) + τ_t  if h_t > 0, else Λ_{t-1};   Λ_0 = 0
    the peer fails the test, and is named, when  Λ_t ≤ ln α;  α = FALSE_ALARM

If v_t is normal with variance e_t² + d_t², each term τ_t is the log-likelihood of v_t for a mean of h_t, minus the
log-likelihood for a mean of 0. A good score does not make up for later bad ones, because a Λ above 0 is set to 0 before
the next term is added (Page's test, CUSUM).

False alarms: if the peer's true score is at least h_t, a term τ has E[exp(−τ)] ≤ 1, because for v ~ N(μ, s²)
E[exp(−(h v − h² / 2) / s²)] = exp(h (h − μ) / s²), where s² = e_t² + d_t². So after each restart of Λ from 0, exp(−Λ)
is a nonnegative supermartingale that begins at 1. By Ville's inequality, it ever reaches 1 / α with probability at most
α. So one evaluator names an honest peer within n scores with probability at most n α. A peer with a true score of m_t
has E[exp(−θ τ)] = 1 at θ = 2 / ρ − 1. For this peer the bound is n α^θ; with α = 10⁻⁴ and ρ = 0.9, α^θ is about 10⁻⁵.
These bounds are approximate, because e_t, d_t and m_t are measured and scores are only nearly normal.

Delay: for a true score of 0, a term has the mean −(ρ m / e)² / 2 and the standard deviation ρ m / e. Gains had m / e =
2.8, measured with 60 assigned and 64 other windows, and with the mean of the round's payloads in place of the
evaluator's own payload. With ρ = 0.9, the mean is −3.2, so Λ reaches ln α = −9.2 after about 3 scores.

m_t is the score of honest peers only while most of the scored peers are honest.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Mapping

from outerloop.scores.gain import Estimate

FALSE_ALARM = 1e-4
"""α, the bound on the probability per score that an honest peer is named."""
LATEST = 16
"""Number of latest scores, of all other peers together, from which m_t and d_t are computed."""
NORMAL = 1.48
"""Standard deviation of a normal distribution, divided by its median absolute deviation."""
FEWEST_OTHERS = 3
"""Minimum number of other peers with a known score. With three, one liar cannot determine the median."""


class ShortfallTest:
    """The tests of all peers that one evaluator scores.

    Args:
        share: ρ, 0 .. 1.
        own: the evaluator's own score. It is m while too few other peers have been scored, and the maximum of m
            afterwards. 0: unknown, so no peer is tested while too few other peers have been scored.
        spread: d, the smallest spread of true scores between honest payloads; 0 if they do not differ (d_t = 0).

    Attributes:
        evidence: peer -> Λ.
        scores: peer -> number of scores so far.
        named: peers whose Λ has reached ln α, unless they were forgotten since then.
    """

    def __init__(self, *, share: float, own: float = 0.0, spread: float = 0.0) -> None:
        self.share, self.own, self.spread = share, own, spread
        self.latest: deque[tuple[str, float]] = deque(maxlen=4 * LATEST)
        self.evidence: dict[str, float] = defaultdict(float)
        self.scores: dict[str, int] = defaultdict(int)
        self.named: set[str] = set()

    def observe(self, values: Mapping[str, Estimate]) -> list[str]:
        """Add the scores of one round, by peer. Return the newly named peers, sorted."""
        self.latest.extend((peer, value.value) for peer, value in values.items())
        for peer, value in values.items():
            self.scores[peer] += 1
            if (least := self.share * self.usual(peer)) > 0:
                term = (least * value.value - least**2 / 2) / (value.error**2 + self.spread_without(peer) ** 2)
                self.evidence[peer] = min(0.0, self.evidence[peer]) + term
        new = sorted(p for p in values if self.evidence[p] <= math.log(FALSE_ALARM) and p not in self.named)
        self.named.update(new)
        return new

    def usual(self, peer: str) -> float:
        """Return m for a peer. Every other peer counts once, with the median of its latest scores."""
        medians = [statistics.median(values) for values in self.latest_without(peer).values()]
        if len(medians) < FEWEST_OTHERS:
            return self.own
        usual = statistics.median(medians)
        return min(usual, self.own) if self.own else usual

    def spread_without(self, peer: str) -> float:
        """Return the spread of true scores between honest payloads, from the latest scores of all peers but `peer`."""
        others, usual = self.latest_without(peer), self.usual(peer)
        if not self.spread or len(others) < FEWEST_OTHERS:
            return self.spread
        deviations = [statistics.median(abs(value - usual) for value in values) for values in others.values()]
        return max(self.spread, NORMAL * statistics.median(deviations))

    def latest_without(self, peer: str) -> dict[str, list[float]]:
        """Return the last LATEST scores of all peers except `peer`, by peer, oldest first."""
        found: dict[str, list[float]] = {}
        for other, value in [(other, value) for other, value in self.latest if other != peer][-LATEST:]:
            found.setdefault(other, []).append(value)
        return found

    def is_honest(self, peer: str, score: Estimate) -> bool:
        """Return whether a score of `peer` counts as honest: h is known, and the score is at least h."""
        return 0 < self.share * self.usual(peer) <= score.value

    def forget(self, peer: str) -> None:
        """Begin the test of a peer again, as if it had not been scored."""
        self.named.discard(peer)
        self.evidence.pop(peer, None)
        self.scores.pop(peer, None)
