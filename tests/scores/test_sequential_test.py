"""The sequential test: its arithmetic, its false alarms and its delay."""

import math
import random

import pytest

from outerloop.scores.gain import Estimate
from outerloop.scores.sequential_test import FALSE_ALARM, ShortfallTest

HONEST = ["a", "b", "c", "d", "e"]


def values(**of):
    return {peer: Estimate(value, 1.0) for peer, value in of.items()}


def test_terms_and_restart():
    test = ShortfallTest(share=0.5)
    assert test.observe(values(a=2.0, b=2.0, c=2.0, x=0.0)) == []
    # The other peers' median is 2, so h = 1 and e = 1: a term is v − 1/2.
    assert test.evidence["x"] == pytest.approx(-0.5)
    assert test.evidence["a"] == pytest.approx(0.5 * 2 * 2 - 0.5)
    test.observe(values(a=2.0, b=2.0, c=2.0, x=2.0))
    assert test.evidence["x"] == pytest.approx(-0.5 + 1.5)
    test.observe(values(a=2.0, b=2.0, c=2.0, x=0.0))
    assert test.evidence["x"] == pytest.approx(0.0 - 0.5)  # not 1.0 − 0.5


def test_a_peer_is_named_once_when_the_evidence_reaches_the_limit():
    test = ShortfallTest(share=0.5)
    named = [test.observe(values(a=2.0, b=2.0, c=2.0, x=0.0)) for _ in range(30)]
    first = math.ceil(-math.log(FALSE_ALARM) / 0.5) - 1
    assert [number for number, peers in enumerate(named) if peers] == [first] and named[first] == ["x"]
    assert test.named == {"x"} and test.scores["x"] == 30


def test_a_long_honest_past_does_not_protect():
    test = ShortfallTest(share=0.5)
    for _ in range(100):
        test.observe(values(a=2.0, b=2.0, c=2.0, x=2.0))
    assert any(test.observe(values(a=2.0, b=2.0, c=2.0, x=0.0)) == ["x"] for _ in range(30))


def test_without_three_others_or_without_their_gain_there_is_no_evidence():
    few, useless = ShortfallTest(share=0.5), ShortfallTest(share=0.5)
    for _ in range(100):
        assert few.observe(values(a=2.0, b=2.0, x=-9.0)) == []
        assert useless.observe(values(a=-1.0, b=0.0, c=-2.0, x=-9.0)) == []
    assert not any(useless.evidence.values()) and not any(few.evidence.values())


def test_a_precise_value_counts_more():
    test = ShortfallTest(share=0.5)
    test.observe(values(a=2.0, b=2.0, c=2.0) | {"x": Estimate(0.0, 0.1)})
    assert test.evidence["x"] == pytest.approx(-0.5 / 0.1**2) and test.named == {"x"}


def drawn(draw, mean):
    return Estimate(draw.gauss(mean, 1.0), 1.0)


def test_false_alarms_and_delay_of_simulated_runs():
    """Five honest peers and one that does not train, with gains of twice their standard error."""
    draw, honest, delays = random.Random(0), 0, []
    for _ in range(200):
        test = ShortfallTest(share=0.9)
        for number in range(1, 31):
            gains = {peer: drawn(draw, 2.0) for peer in HONEST} | {"x": drawn(draw, 0.0)}
            if "x" in test.observe(gains):
                delays.append(number)
        honest += len(test.named - {"x"})
    # 200 · 5 · 30 scores at about 1e-5 each: an expected 0.3 false alarms, and more than 5 with probability 1e-6
    assert honest <= 5
    assert len(delays) >= 195 and sorted(delays)[len(delays) // 2] <= 10


def test_the_own_score_replaces_the_median_until_three_others_are_known():
    test = ShortfallTest(share=0.5, own=1.0)
    test.observe({"x": Estimate(0.0, 1.0)})
    assert test.evidence["x"] == pytest.approx(-(0.5**2) / 2)  # h = 0.5 and v = 0
    assert test.usual("x") == 1.0 and ShortfallTest(share=0.5).usual("x") == 0.0


def test_scores_that_differ_between_honest_peers_count_less():
    test = ShortfallTest(share=0.5, spread=0.1)
    test.observe(values(a=1.0, b=2.0, c=3.0, d=2.0))
    assert test.spread_without("x") == pytest.approx(1.48 * 0.5)  # the deviations from 2 are 1, 0, 1 and 0
    test.observe({"x": Estimate(0.0, 1.0)})
    assert test.evidence["x"] == pytest.approx(-(1.0**2) / 2 / (1 + 0.74**2))
    same = ShortfallTest(share=0.5, spread=0.1)
    same.observe(values(a=2.0, b=2.0, c=2.0, d=2.0))
    assert same.spread_without("x") == 0.1 and ShortfallTest(share=0.5).spread_without("x") == 0.0
    few = ShortfallTest(share=0.5, spread=0.1)
    few.observe(values(a=-1.0, b=2.0))
    assert few.spread_without("x") == 0.1  # one of two cannot make the other one untestable


def test_a_peer_that_is_scored_often_counts_once():
    test = ShortfallTest(share=0.5)
    test.observe(values(a=2.0, b=2.0, c=2.0))
    for _ in range(9):
        test.observe(values(d=9.0))
    assert test.usual("x") == 2.0


def test_the_median_is_at_most_the_own_score():
    test = ShortfallTest(share=0.5, own=1.0)
    test.observe(values(a=3.0, b=3.0, c=3.0))
    assert test.usual("x") == 1.0


def test_a_score_counts_as_honest_from_a_share_of_the_median_on():
    test = ShortfallTest(share=0.5)
    assert not test.is_honest("x", Estimate(9.0, 1.0))  # the median is unknown
    test.observe(values(a=2.0, b=2.0, c=2.0))
    assert test.is_honest("x", Estimate(1.0, 1.0)) and not test.is_honest("x", Estimate(0.9, 1.0))


def test_a_forgotten_peer_begins_again():
    test = ShortfallTest(share=0.5)
    for _ in range(30):
        test.observe(values(a=2.0, b=2.0, c=2.0, x=0.0))
    test.forget("x")
    assert "x" not in test.named and test.evidence["x"] == 0.0 and test.scores["x"] == 0
    assert test.evidence["a"] > 0
