"""The rules of the norm screen by hand: whose contribution counts, how long it may be, what is remembered."""

import math
from dataclasses import replace

import pytest
import torch

from outerloop.aggregate.mean import Mean
from outerloop.aggregate.median_clip import MedianClip
from outerloop.aggregate.norm_screen import GROWTH, LONGEST, MAX_SAMPLES, REMEMBERED, Measured, NormScreen
from outerloop.aggregate.screen import screen_of
from outerloop.exchange.inprocess import InProcess
from outerloop.methods.average import Average
from outerloop.methods.sign import Sign
from outerloop.state import canonical
from outerloop.types import UserError


def of(*norms, samples=None, refused=0, fragment=0):
    return Measured(fragment, [float(n) for n in norms], samples or [64] * len(norms), refused)


def knowing(*medians):
    """A screen that has seen rounds of three equal norms."""
    screen = NormScreen(on=True)
    for m in medians:
        screen.observe(of(m, m, m))
    return screen


def test_the_median_of_two_norms_is_the_lower_one():
    A = torch.tensor([3.0, 4.0])
    assert MedianClip(of=Mean())([A, 1e30 * A], [1, 1], [5.0, 5e30]).tolist() == pytest.approx([3.0, 4.0])
    assert of(5, 8e39).median == of(1, 5, 7, 9).median == of(0, 0, 5, 6).median == 5


@pytest.mark.parametrize(
    ("norms", "before", "refused"),
    [
        ([1, 1.1, 5.5], [], []),
        ([1, 1.1, 5.6], [], [2]),
        ([1, 1.1, LONGEST * 1.01], [], [2]),
        ([math.inf, 1.1, 1], [], [0]),
        ([6, 1, 1, 6], [], [0, 3]),
        ([1e-9, 1, 1.1], [], []),
        ([0, 0, 0], [], []),
        ([1, 1, 40], [9], [2]),
        ([1, 5.1], [], []),
        ([1, 5.1], [2], []),
        ([1, 10.1], [2], [1]),
        ([1e-9, 1], [1], []),
        ([300, 310], [1], []),
        ([LONGEST * 2, LONGEST * 3], [1], [0, 1]),
    ],
)
def test_a_norm_above_five_times_the_usual_is_refused(norms, before, refused):
    assert list(knowing(*before).refusals(of(*norms))) == refused


@pytest.mark.parametrize(
    ("norms", "before", "said"),
    [
        ([1, 1.1, 5.6], [], "its norm is 5.6, more than 5 times the usual 1.1"),
        ([1, 1.1, 2 * LONGEST], [], "its norm is 2.31e+18, more than 5 times the usual 1.1"),
        ([LONGEST / 2, LONGEST / 2, 2 * LONGEST], [], "its norm is 2.31e+18, more than the maximum 1.15e+18"),
        ([2 * LONGEST], [], "its norm is 2.31e+18, more than the maximum 1.15e+18"),
    ],
)
def test_a_refusal_names_the_limit_that_applied(norms, before, said):
    assert list(knowing(*before).refusals(of(*norms)).values()) == [said]


@pytest.mark.parametrize("outlier", [1e-30, 1e9])
def test_of_two_peers_neither_is_refused_before_a_round_has_landed(outlier):
    """Two norms do not show which of them is wrong. The larger one is clipped, and nothing is stored."""
    screen, two = NormScreen(on=True), of(1, outlier)
    for _ in range(3):
        assert screen.refusals(two) == {}
        factors = screen.factors(two)
        assert min(factors) == pytest.approx(min(two.norms) / max(two.norms)) and max(factors) == 1
        screen.observe(two)
    assert screen.landed == {}


def test_norms_that_no_honest_peer_reaches_are_refused_also_of_two_peers_in_the_first_round():
    assert list(NormScreen(on=True).refusals(of(1, 1e39))) == [1]


def test_more_samples_than_anybody_sees_are_refused_and_many_weigh_four_times_the_median():
    screen = NormScreen(on=True)
    said = screen.refusals(of(1, 1, 1, samples=[64, 2**63, MAX_SAMPLES]))
    assert list(said) == [1] and str(2**63) in said[1]
    assert screen.weights(of(1, 1, 1, samples=[64, 100, 10**6])) == [64, 100, 400]
    assert screen.weights(of(1, 1, samples=[1, 10**6])) == [1, 4]
    assert screen.weights(of(1, 1, samples=[0, 0])) == [0, 0]


def test_nobody_counts_for_more_than_the_median_nor_for_more_than_four_times_the_rounds_before():
    assert NormScreen(on=True).factors(of(1, 2, 4)) == [1, 1, 0.5]
    assert NormScreen(on=True).factors(of(1, 2)) == [1, 0.5]
    assert knowing(1).factors(of(1, 2, 5)) == [1, 1, 0.4]
    assert knowing(1).factors(of(8, 8, 8)) == [0.5, 0.5, 0.5]
    assert knowing(1).factors(of(2, GROWTH)) == [1, 1], "two have no middle"
    assert knowing(1).factors(of(2, 5)) == [1, 0.8]
    assert knowing(1).factors(of(2, 3, refused=1)) == [1, 1], "the refused one was longer: 3 is the middle"
    assert NormScreen(on=False).factors(of(1, 2, 5)) == [1, 1, 1]
    assert NormScreen(on=True).factors(of(0, 0, 0)) == [1, 1, 1]


def test_a_fragment_remembers_the_longest_median_of_its_last_rounds():
    screen = knowing(3, 1, 2)
    assert screen.before(0) == 3 and screen.before(1) == 0
    for _ in range(REMEMBERED - 2):
        screen.observe(of(1, 1, 1))
    assert screen.before(0) == 2
    screen.observe(of(0, 0, 0))
    assert screen.landed == {0: [1, 2, 1, 1]}


def test_norms_of_two_peers_that_differ_too_much_are_not_remembered():
    """So neither a tiny nor a huge one of two makes the other one's norm unusual for good."""
    screen = NormScreen(on=True)
    screen.observe(of(1e-9, 1))
    screen.observe(of(1e-9, refused=1))
    assert screen.landed == {}
    screen.observe(of(1, 4))
    screen.observe(of(1e-9, 1))
    screen.observe(of(2, refused=1))
    assert screen.landed == {0: [1, 2]}


def test_a_refused_contribution_is_the_third_of_the_middle_also_in_the_first_round():
    """The lower median of 1, 1.5 and the refused one, which counts as larger, is 1.5."""
    screen = NormScreen(on=True)
    screen.observe(of(1.0, 1.5, refused=1))
    assert screen.before(0) == 1.5


def test_a_norm_that_grows_within_the_limit_of_a_moving_average_is_refused_here():
    """EDiT (arXiv 2412.07210) refuses a worker whose norm is above μ + 3 σ, with moving averages of its own past norms.

    A liar that sends μ + 3 σ in every round raises σ by √((1 − α) (1 + 9 α (1 − α))) = 1.0737 per round for α = 0.02.
    """
    mean, variance, alpha = 1.0, 0.02**2, 0.02
    sent = []
    for _ in range(100):
        sent.append(mean + 3 * math.sqrt(variance))
        change = sent[-1] - mean
        mean += alpha * change
        variance = (1 - alpha) * (variance + alpha * change * (sent[-1] - mean))
    assert math.sqrt(variance) == pytest.approx(0.02 * 1.0737**100, rel=0.01)
    assert sent[-1] > 80, "the moving average accepts it"
    screen = knowing(1)
    assert screen.factors(of(1, 1, sent[10])) == [1, 1, 1 / sent[10]], "clipped to the honest norm"
    assert list(screen.refusals(of(1, 1, sent[-1]))) == [2]


def test_its_state_goes_through_a_snapshot_and_is_checked():
    screen, other = knowing(3, 1), NormScreen(on=True)
    other.load_state_dict(canonical.unpack(canonical.pack(screen.state_dict())))
    assert other.landed == screen.landed
    for wrong in (math.nan, math.inf, -1.0, 0.0, 2 * LONGEST):
        with pytest.raises(ValueError, match="not positive and finite"):
            other.load_state_dict({"landed": {0: [wrong]}})
    assert other.landed == screen.landed
    other.load_state_dict({})
    assert other.landed == {}, "of an older run"


class Elsewhere(InProcess):
    info = replace(InProcess.info, waits_for_all=False)


def test_it_is_on_by_itself_where_peers_are_not_waited_for():
    def on(clip, exchange, method, eager=False):
        return screen_of(clip, method=method, exchange=exchange.info, eager=eager).on

    assert on("auto", Elsewhere, Sign) and on("auto", Elsewhere, Average) and on("median", InProcess, Sign)
    assert not on("auto", InProcess, Sign) and not on("none", Elsewhere, Sign)
    assert not on("auto", Elsewhere, Sign, eager=True), "each takes a step of its own"
    for parts in ((InProcess, Average, False), (InProcess, Sign, True)):
        with pytest.raises(UserError, match="each peer takes a different one: set clip=auto"):
            on("median", *parts)
    with pytest.raises(UserError, match="clip=mean is not one of auto, median, none: set clip=auto"):
        on("mean", InProcess, Sign)
