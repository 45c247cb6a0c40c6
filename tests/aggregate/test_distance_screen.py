"""The screen of gossip: how far a partner's weights may be, and how little a lying one moves who meets it."""

import math
from dataclasses import replace

import pytest
import torch

from outerloop import wire
from outerloop.aggregate.distance_screen import DRIFT, GROWTH, REFUSED, DistanceScreen, too_far
from outerloop.aggregate.norm_screen import LONGEST, REMEMBERED, Measured
from outerloop.aggregate.screen import screen_of
from outerloop.exchange.inprocess_gossip import InProcessGossip
from outerloop.methods.average import Average
from outerloop.methods.noloco import NoLoCo
from outerloop.types import Contribution
from tests.support import toy
from tests.support.tensors import same_tensors

THETA_ALONE = {"alpha": 0.5, "beta": 0.7, "gamma": None, "consensus": "inside"}
BOTH = {"alpha": 0.5, "beta": 0.7, "gamma": 0.9, "consensus": "inside"}
OUTSIDE = {"alpha": 0.9, "beta": 0.7, "gamma": 1.0, "consensus": "outside"}


def pair(own, partner, fragment=0):
    """Distances of a pair of which this peer comes first."""
    return Measured(fragment, [float(own), float(partner)], [1, 1], own=0)


def having_met(*distances):
    """A screen that partners at these distances have counted for, this peer's peer's inner steps being as long."""
    screen = DistanceScreen(on=True)
    for d in distances:
        screen.observe(pair(d, d))
    return screen


@pytest.mark.parametrize(
    ("met", "own", "partner", "factor"),
    [
        ((), 1, 1, 1), ((), 1, 4, 1), ((), 1, 8, 0.5), ((), 0, 3, 0.0),
        ((2, 2, 2), 1, 8, 1), ((2, 2, 2), 1, 16, 0.5), ((2, 2, 2), 3, 12, 1), ((2, 2, 2), 3, 24, 0.5),
        ((1, 1, 9, 9), 0, 8, 0.5), ((9, 9, 9, 1, 1, 1), 0, 8, 0.5),
    ],
)  # fmt: skip
def test_a_partner_is_shortened_to_four_times_the_usual(met, own, partner, factor):
    assert having_met(*met).factors(pair(own, partner)) == [1.0, factor]


@pytest.mark.parametrize(
    ("met", "own", "partner", "refused"),
    [
        ((), 1, 32, False), ((), 1, 32.1, True), ((2, 2), 1, 64, False), ((2, 2), 1, 64.1, True),
        ((), 0, 5, False), ((), 0, 2.0**61, True), ((1e30,), 1, 2.0**61, True), ((), 1, math.inf, True),
    ],
)  # fmt: skip
def test_a_partner_far_beyond_the_usual_does_not_count(met, own, partner, refused):
    found = having_met(*met).refusals(pair(own, partner))
    assert bool(found) == refused and set(found) <= {1}


@pytest.mark.parametrize(
    ("usual", "d", "said"),
    [
        (2.0, 65.0, "its weights are 65 away from this peer's, more than 32 times the usual 2"),
        (0.0, 2 * LONGEST, "its weights are 2.31e+18 away from this peer's, more than the maximum 1.15e+18"),
        (LONGEST / 4, 2 * LONGEST, "its weights are 2.31e+18 away from this peer's, more than the maximum 1.15e+18"),
        (math.inf, 2 * LONGEST, "its weights are 2.31e+18 away from this peer's, more than the maximum 1.15e+18"),
    ],
)
def test_a_refusal_names_the_limit_that_applied(usual, d, said):
    assert too_far({"001": d, "002": 1.0}, usual) == {"001": said}


def test_only_partners_that_counted_are_remembered_each_fragment_by_itself():
    screen = having_met(1, 2, 3, 4, 5)
    assert screen.landed == {0: [2.0, 3.0, 4.0, 5.0]} and screen.before(0) == 3 and screen.before(1) == 0
    screen.observe(Measured(0, [9.0], [1], refused=1, own=0))
    screen.observe(pair(0, 0))
    assert screen.landed == {0: [2.0, 3.0, 4.0, 5.0]}, "a solo step, and a partner with the same weights"
    screen.observe(pair(1, 1000))
    assert screen.landed[0][-1] == GROWTH * 3, "as far as it counted"
    taken = DistanceScreen(on=True)
    taken.load_state_dict(screen.state_dict())
    assert taken.landed == screen.landed and len(taken.landed[0]) == REMEMBERED


def test_a_liar_that_is_met_in_every_other_round_does_not_set_what_is_usual():
    screen = DistanceScreen(on=True)
    for _ in range(50):
        screen.observe(pair(1, 1.5))
        screen.observe(pair(1, REFUSED))
        assert screen.before(0) == 1.5


@pytest.mark.parametrize("of", [1, 2, 4])
def test_a_liar_that_is_met_in_most_rounds_does_not_set_what_is_usual_either(of):
    """In all rounds, or all but one of so many, as far away as just counts. Before: up to 2⁶⁰ after 60 rounds."""
    screen = DistanceScreen(on=True)
    for number in range(200):
        own, honest = 1 + number % 2, of > 1 and number % of == 0
        at = pair(own, 1.5 if honest else REFUSED * max(screen.usual(pair(own, 0)), own))
        assert GROWTH * screen.usual(at) <= GROWTH * DRIFT * 2
        screen.observe(at)
    assert screen.usual_of_replicas() <= DRIFT * 2
    assert list(screen.refusals(pair(1, 1.01 * REFUSED * DRIFT * 2))) == [1]


def test_own_step_lengths_are_remembered_for_the_whole_run_and_across_restarts():
    screen = having_met(9, 9, 9, 9)
    for _ in range(20):
        screen.observe(pair(0.01, 100))
    assert screen.usual(pair(0.01, 0)) == screen.usual_of_replicas() == DRIFT * 9
    taken = DistanceScreen(on=True)
    taken.load_state_dict(screen.state_dict())
    assert taken.longest == screen.longest == {0: 9.0}
    older = screen.state_dict()
    del older["longest"]
    taken.load_state_dict(older)
    assert taken.longest == {0: taken.before(0)}
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="peer's inner steps"):
            taken.load_state_dict(older | {"longest": {0: bad}})
    solo = DistanceScreen(on=True)
    solo.observe(Measured(0, [3.0], [1], own=0))
    assert solo.longest == {0: 3.0} and not solo.landed


def test_replicas_that_drift_apart_are_followed():
    """Every partner is 20 times as far as before: within a few rounds they count in full."""
    screen, rounds = having_met(1, 1, 1, 1), 0
    while screen.factors(pair(1, 20))[1] < 1:
        assert not screen.refusals(pair(1, 20))
        screen.observe(pair(1, 20))
        rounds += 1
    assert rounds <= 2 * REMEMBERED


class Network(toy.Around):
    """An exchange of gossip between machines."""

    info = replace(InProcessGossip.info, waits_for_all=False)

    def __init__(self, inner, partner):
        super().__init__(inner)
        self.partner, self.struck = partner, []

    def start(self, blob, round):
        pending = self.inner.start(blob, round)
        return toy.Changed(pending, lambda got: [*got, Contribution("001", round, self.partner(blob, round))])

    def refused(self, round, refusals):
        self.struck.append((round.number, sorted(refusals)))


def told_as(blob, peer, change):
    """The same message with other values, of another peer."""
    header, tensors = wire.read(blob)
    names = {name: p.shape for name, p in toy.model().named_parameters()}
    parts = {name: {"value": change(part["value"])} for name, part in zip(names, tensors, strict=True)}
    return wire.pack(wire.Header(header.round, header.fragment, 1, header.schema, 7, peer), parts)


def trained(partner, rounds=6, settings=THETA_ALONE, clip="auto", method=None):
    """One worker that meets such a partner in every round: its loop, how far φ moved in each round, who was struck."""

    def work(exchange):
        network = Network(exchange, partner)
        net = toy.model()
        loop = toy.outer(net, network, h=2, method=method or NoLoCo(**settings), clip=clip)
        inner, moved, reports = torch.optim.SGD(net.parameters(), lr=0.1), [], []
        for step in range(2 * rounds):
            before = {name: x.clone() for name, x in loop.slow.items()}
            toy.inner_step(net, inner, 0, step)
            reports += (new := loop.after_inner_step(1))
            if new:
                moved.append(math.sqrt(sum(float((x - before[name]).square().sum()) for name, x in loop.slow.items())))
        return loop, moved, reports, network.struck

    return toy.run_workers(1, work)[0]


def honest(blob, round):
    """A partner that trained otherwise: the same weights with a little noise that depends on the round alone."""
    draw = torch.Generator().manual_seed(round.number)
    return told_as(blob, "001", lambda x: x + 0.01 * torch.randn(x.shape, generator=draw))


def huge(blob, round):
    return told_as(blob, "001", lambda x: torch.full_like(x, 1e38))


def hundredfold(blob, round):
    return told_as(blob, "001", lambda x: 100 * x)


@pytest.mark.parametrize("settings", [THETA_ALONE, BOTH, OUTSIDE], ids=["theta alone", "both", "outside"])
def test_an_honest_partner_counts_bit_for_bit_as_without_the_screen(settings):
    screened, *_ = trained(honest, settings=settings)
    free, *_ = trained(honest, settings=settings, clip="none")
    assert screened.screen.on and not free.screen.on
    assert same_tensors(screened.slow, free.slow)
    assert screened.screen.landed[0], "it was measured"


@pytest.mark.parametrize("settings", [THETA_ALONE, BOTH, OUTSIDE], ids=["theta alone", "both", "outside"])
@pytest.mark.parametrize("liar", [huge, hundredfold])
def test_a_partner_that_sends_other_weights_altogether_is_named_and_moves_nothing(liar, settings):
    """Before: 1e38 in every weight after one round. Now the round is a solo step, bit for bit."""
    loop, _, reports, struck = trained(liar, settings=settings)
    alone, *_ = trained(lambda blob, round: b"", settings=settings)
    assert same_tensors(loop.slow, alone.slow)
    assert [report.peers for report in reports] == [("000",)] * 6 and struck == [(n, ["001"]) for n in range(6)]
    assert all("times the usual" in report.refused[0] for report in reports)


def test_weights_that_are_averaged_alone_are_screened_too():
    """LocalSGD in pairs between machines. Before: 1e38 in every weight after one round."""
    loop, *_, struck = trained(huge, method=Average())
    alone, *_ = trained(lambda blob, round: b"", method=Average())
    assert same_tensors(loop.slow, alone.slow) and len(struck) == 6
    screened, *_ = trained(honest, method=Average())
    free, *_ = trained(honest, method=Average(), clip="none")
    assert same_tensors(screened.slow, free.slow) and screened.screen.landed[0]


@pytest.mark.parametrize("times", [5.0, 10.0, 31.0])
def test_a_partner_too_far_moves_who_meets_it_by_no_more_than_the_bound(times):
    """‖θ_j − φ_i‖ is so many times r = ‖θ_i − φ_i‖ in the first round and counts as 4 r, so φ_i moves by

    β ‖(θ_i − φ_i) + (θ_j − φ_i)‖ / 2 <= .7 (r + 4 r) / 2, and by at least .7 (times − 1) r / 2 without the screen.
    """
    phi = {name: p.detach() for name, p in toy.model().named_parameters()}
    values, seen = sum(x.numel() for x in phi.values()), {}

    def far(blob, round):
        _, tensors = wire.read(blob)
        apart = [part["value"] - x.reshape(-1) for part, x in zip(tensors, phi.values(), strict=True)]
        seen["r"] = math.sqrt(sum(float(x.square().sum()) for x in apart))
        seen["theta"] = [part["value"] for part in tensors]
        starts = iter(phi.values())
        return told_as(blob, "001", lambda x: next(starts).reshape(-1) + times * seen["r"] / math.sqrt(values))

    loop, moved, reports, struck = trained(far, rounds=1)
    for theta, x, slow in zip(seen["theta"], phi.values(), loop.slow.values(), strict=True):
        ours, theirs = theta - x.reshape(-1), 4 * seen["r"] / math.sqrt(values)
        assert torch.allclose(slow.reshape(-1), x.reshape(-1) + 0.7 * (ours + theirs) / 2, atol=1e-5), (
            "(θ_j − φ_i) 4 r / d_j"
        )
    assert reports[0].peers == ("000", "001") and not struck and moved[0] <= 1.001 * 0.7 * 2.5 * seen["r"]
    _, free, *_ = trained(far, rounds=1, clip="none")
    assert free[0] >= 0.999 * 0.7 * (times - 1) * seen["r"] / 2


def test_which_runs_are_screened():
    threads, machines = InProcessGossip.info, Network.info
    for method in (NoLoCo(**THETA_ALONE), Average()):
        for exchange, clip, on in [(machines, "auto", True), (machines, "none", False), (threads, "auto", False)]:
            screen = screen_of(clip, method=method, exchange=exchange, eager=False)
            assert isinstance(screen, DistanceScreen) and screen.on == on
    assert LONGEST == 2.0**60
