"""Centered clipping, geometric median and trust weights: by hand, their limits, and compressors that are refused."""

import itertools

import pytest
import torch

from outerloop.aggregate import exact_norms, mean
from outerloop.aggregate.centered_clip import CenteredClip
from outerloop.aggregate.geometric_median import GeometricMedian
from outerloop.aggregate.mean import Mean, weighted_sum
from outerloop.aggregate.median_clip import MedianClip
from outerloop.aggregate.trust import Trust
from outerloop.compress.uniform import Uniform
from outerloop.config import instantiate, load, part_checks
from outerloop.exchange.inprocess import Hub, InProcess
from outerloop.types import UserError
from tests.support import toy

RULES = [CenteredClip(iterations=3), GeometricMedian(iterations=4), Trust()]
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
LARGEST = torch.finfo(torch.float32).max


def of(rule, *peers):
    """The aggregate of these lists of numbers."""
    return rule([torch.tensor(x) for x in peers], [1] * len(peers), []).tolist()


def drawn(peers, count, seed=0):
    """Contributions with a common direction, and noise of the same size."""
    draw = torch.Generator().manual_seed(seed)
    return list(torch.randn(count, generator=draw) + torch.randn(peers, count, generator=draw))


def test_centered_clip_by_hand():
    once = CenteredClip(iterations=1)
    assert of(once, [3.0, -1.0]) == [3.0, -1.0]
    assert of(once, [3.0, -1.0], [5.0, -2.0]) == [4.0, -1.5], "two are equally far from their middle"
    assert of(once, [0.0], [0.0], [1.0], [2.0], [99.0]) == [1.0], "around 1, with radius 1: -1 - 1 + 0 + 1 + 1"
    assert of(once, [2.0], [1.0], [3.0], [-90.0]) == [1.5], "around 1.5, with radius 0.5: 0.5 - 0.5 + 0.5 - 0.5"
    assert of(once, [0.0, 0.0], [6.0, 0.0], [0.0, 9.0]) == [2.0, 2.0], "around 0, with radius 6: the 9 counts as 6"
    six = [[x] for x in (-3.0, -1.0, -1.0, 1.0, 4.0, 8.0)]
    assert of(once, *six) == pytest.approx([0.0], abs=1e-6), "around 0; of 1, 1, 1, 3, 4, 8 the third is the radius"


def test_geometric_median_by_hand():
    rule = GeometricMedian(iterations=1)
    assert of(rule, [3.0, -1.0]) == [3.0, -1.0]
    assert of(rule, [3.0, -1.0], [5.0, -2.0]) == [4.0, -1.5]
    assert of(rule, [7.0], [7.0], [1.0], [9.0]) == [7.0], "half of them are equal"
    assert of(rule, [0.0, 0.0], [0.0, 0.0], [3.0, 0.0], [0.0, 5.0]) == [0.0, 0.0], "of 0, 0, 3, 5 the second is taken"
    weights = 1 / 0.003, 1 / 4, 1 / 3
    assert of(rule, [0.0, 0.0], [4.0, 0.0], [0.0, 3.0]) == pytest.approx([1 / sum(weights)] * 2), (
        "from 0, where ν is 0.003"
    )


def test_trust_by_hand():
    assert of(Trust(), [3.0, 4.0]) == [3.0, 4.0]
    assert of(Trust(), [3.0, 4.0], [3.0, 4.0], [-3.0, -4.0]) == [3.0, 4.0], "the opposite counts nothing"
    assert of(Trust(), [3.0, 4.0], [30.0, 40.0], [3.0, 4.0]) == pytest.approx([3.0, 4.0]), "ten times counts once"
    assert of(Trust(), [1.0], [-1.0], [0.0]) == [0.0], "no direction in common: the median"


@each_rule
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 0, 2), (2, 3, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shape_and_dtype_stay_and_the_input_too(rule, shape, dtype):
    sent = [torch.randn(shape, dtype=dtype) for _ in range(3)]
    before = [x.clone() for x in sent]
    result = rule(sent, [1, 1, 1], [])
    assert result.shape == shape and result.dtype == dtype
    assert all(map(torch.equal, sent, before))
    assert all(result.data_ptr() != x.data_ptr() for x in sent if x.numel())


@each_rule
@pytest.mark.parametrize("peers", range(1, 7))
def test_equal_contributions_are_their_own_aggregate(rule, peers):
    x = torch.randn(101)
    assert torch.equal(rule([x] * peers, [1] * peers, []), x)
    assert torch.equal(rule([torch.zeros(5)] * peers, [1] * peers, []), torch.zeros(5))


@each_rule
def test_names_of_peers_do_not_matter_but_for_one_rounding(rule):
    sent = drawn(4, 200)
    first = rule(sent, [1] * 4, [])
    for order in itertools.permutations(sent):
        torch.testing.assert_close(rule(order, [1] * 4, []), first, rtol=1e-6, atol=1e-7)


@each_rule
def test_the_bits_do_not_depend_on_the_number_of_threads(rule):
    sent, threads, found = drawn(5, (1 << 20) + 1), torch.get_num_threads(), []
    for count in (1, 2, 7):
        torch.set_num_threads(count)
        found.append(rule(sent, [1] * 5, []).view(torch.int32))
    torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@each_rule
@pytest.mark.parametrize(("peers", "liars", "bound"), [(3, 1, 0.8), (5, 2, 1.2), (8, 2, 0.5), (8, 3, 1.0)])
@pytest.mark.parametrize("value", [10.0, 1e4, 1e30, LARGEST, -LARGEST, torch.inf])
def test_liars_of_any_size_move_it_by_less_than_an_honest_peer_is_away(rule, peers, liars, bound, value):
    """The bound is in multiples of the largest distance of an honest contribution from the honest mean.

    An infinite value is refused before it is decoded; here it stands for differences that overflow.
    """
    honest = torch.stack(drawn(peers - liars, 201, seed=peers))
    middle = honest.mean(0)
    result = rule([*honest, *[torch.full((201,), value)] * liars], [1] * peers, [])
    assert float((result - middle).norm()) < bound * float((honest - middle).norm(dim=1).max())


@each_rule
def test_differences_that_overflow_float64_count_as_infinitely_far(rule):
    huge = torch.full((10,), torch.finfo(torch.float64).max, dtype=torch.float64)
    honest = torch.linspace(1, 2, 10, dtype=torch.float64)
    torch.testing.assert_close(rule([honest, honest, honest, huge, -huge], [1] * 5, []), honest)


def test_a_factor_on_a_payload_does_not_change_trust():
    *honest, last = drawn(6, 100)
    first = Trust()([*honest, 4 * last], [1] * 6, [])
    assert torch.allclose(Trust()([*honest, 4096 * last], [1] * 6, []), first, atol=0.1)


def test_without_outliers_a_step_of_centered_clipping_is_the_mean():
    """Both of two contributions are exactly as far from their middle as the radius."""
    sent = drawn(2, 100)
    assert torch.allclose(CenteredClip(iterations=1)(sent, [1, 1], []), Mean()(sent, [1, 1], []), atol=1e-6)


@pytest.mark.parametrize("kind", [CenteredClip, GeometricMedian])
def test_no_iterations_are_refused(kind):
    with pytest.raises(UserError, match=r"aggregate\.iterations=0 must be at least 1"):
        kind(iterations=0)


@pytest.mark.parametrize("compress", ["topk", "adaptive", "threshold", "dct"])
@pytest.mark.parametrize("aggregate", [*RULES, MedianClip(of=RULES[0])], ids=lambda rule: type(rule).__name__)
def test_with_a_sparse_compressor_it_is_refused_in_one_sentence(compress, aggregate):
    codec = instantiate.make(load.compose_config([f"compress={compress}"]).compress)
    with pytest.raises(UserError, match=r"each peer sends different coordinates, .*: set aggregate=\w+, or") as error:
        toy.outer(toy.model(), InProcess(hub=Hub(2), rank=0), aggregate=aggregate, compress=codec)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("aggregate", ["centered_clip", "geometric_median", "trust"])
def test_the_command_line_refuses_top_k_and_accepts_rotated_and_dense_payloads(aggregate):
    typed = ["exchange=inprocess", "model=nano", f"aggregate={aggregate}"]
    with pytest.raises(UserError, match="or compress=int8 or rotated"):
        part_checks.check_parts(load.load(["recipe=sparseloco", *typed]))
    for accepted in (["recipe=outerloop"], ["recipe=diloco"], ["recipe=diloco", "compress=int8"], ["recipe=loco"]):
        part_checks.check_parts(load.load([*accepted, *typed]))


@each_rule
def test_in_the_loop_one_peer_that_sends_nonsense_changes_little(rule):
    """Two of three peers train equally; the third moves a thousand times as far."""

    def work(exchange, lr):
        net = toy.model()
        loop = toy.outer(net, exchange, h=1, aggregate=rule, compress=Uniform(bits=8, chunk=64))
        toy.inner_step(net, torch.optim.SGD(net.parameters(), lr=lr if exchange.rank == 2 else 0.01), 0, 0)
        [report] = loop.after_inner_step(1)
        assert not report.failed and len(report.peers) == 3
        return [x.clone() for x in loop.slow.values()]

    honest = toy.run_workers(3, lambda exchange: work(exchange, 0.01))
    attacked = toy.run_workers(3, lambda exchange: work(exchange, 10.0))
    for calm, slow in zip(honest, attacked, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(calm, honest[0], strict=True)), "replicas are equal"
        assert all(torch.equal(x, y) for x, y in zip(slow, attacked[0], strict=True)), "replicas are equal"
        assert all(torch.allclose(x, y, atol=1e-4) for x, y in zip(slow, calm, strict=True)), "two of three agree"


def test_a_weighted_sum_skips_weights_of_zero_and_does_not_depend_on_the_pieces(monkeypatch):
    sent = [*drawn(3, 1000), torch.full((1000,), torch.inf)]
    weights = [0.5, -0.25, 3.0, 0.0]
    found = weighted_sum(sent, weights)
    torch.testing.assert_close(found, 0.5 * sent[0] - 0.25 * sent[1] + 3 * sent[2])
    monkeypatch.setattr(mean, "PIECE", 33)
    assert torch.equal(weighted_sum(sent, weights), found)


def test_distances_are_right_for_several_pieces(monkeypatch):
    x, y = drawn(2, 1000)
    assert exact_norms.distance(x, y) == pytest.approx(float((x.double() - y.double()).norm()), rel=1e-6)
    monkeypatch.setattr(exact_norms, "PIECE", 33)
    assert exact_norms.distance(x, y) == pytest.approx(float((x.double() - y.double()).norm()), rel=1e-6)
    assert exact_norms.distance(x, x) == exact_norms.distance(torch.zeros(0), torch.zeros(0)) == 0.0
