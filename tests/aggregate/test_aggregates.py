"""Weighted, RDA and median-clip aggregates and exact norms, by hand."""

import math

import pytest
import torch

from outerloop.aggregate import exact_norms
from outerloop.aggregate.exact_norms import sum_of_products, sum_of_squares, sums_of_squares
from outerloop.aggregate.mean import Mean
from outerloop.aggregate.median_clip import MedianClip
from outerloop.aggregate.rda import RDA
from outerloop.aggregate.weighted import Weighted
from tests.support import toy

A, B = torch.tensor([3.0, 4.0]), torch.tensor([-3.0, 4.0])


def test_weighted_by_hand():
    assert Weighted()([A, B], [3, 1], []).tolist() == [1.5, 4.0]
    assert Weighted()([A, B], [0, 0], []).tolist() == [0.0, 4.0]


def test_rda_keeps_the_length_of_one_step():
    """|A| = |B| = 5, mean (0, 4): stretched to (0, 5). Opposite contributions give zero, not NaN."""
    assert RDA()([A, B], [1, 1], []).tolist() == pytest.approx([0.0, 5.0])
    assert RDA()([A, -A], [1, 1], []).tolist() == [0.0, 0.0]


def test_median_clip_by_hand():
    """Norms 5, 5, 5000: the third is scaled by 1/1000."""
    clipped = MedianClip(of=Mean())([A, B, 1000 * A], [1, 1, 1], [5.0, 5.0, 5000.0])
    assert clipped.tolist() == pytest.approx([1.0, 4.0])


@pytest.mark.parametrize(
    ("norms", "factors"),
    [
        ([5.0, 0.0], [1, 1]),
        ([5.0, 5.0, 0.0, 0.0], [1, 1, 1, 1]),
        ([5.0, 20.0, 0.0, 0.0, 0.0], [1, 0.25, 1, 1, 1]),
        ([0.0, 0.0], [1, 1]),
    ],
)
def test_peers_that_send_zeros_do_not_set_the_norm_to_which_the_others_are_clipped(norms, factors):
    assert MedianClip(of=Mean()).factors(norms) == factors
    sent = [torch.tensor([norm, 0.0]) for norm in norms]
    mean = sum(norm * factor for norm, factor in zip(norms, factors, strict=True)) / len(norms)
    assert MedianClip(of=Mean())(sent, [1] * len(norms), norms).tolist() == [mean, 0.0]


def test_median_clip_in_the_loop_tames_one_bad_peer():
    def work(exchange):
        net = toy.model()
        loop = toy.outer(net, exchange, h=1, aggregate=MedianClip(of=Mean()))
        before = {name: x.clone() for name, x in loop.slow.items()}
        lr = 1e4 if exchange.rank == 2 else 0.01
        toy.inner_step(net, torch.optim.SGD(net.parameters(), lr=lr), exchange.rank, 0)
        loop.after_inner_step(1)
        return sum(float((loop.slow[n] - x).norm() ** 2) for n, x in before.items()) ** 0.5

    moved = toy.run_workers(3, work)
    assert moved[0] == moved[1] == moved[2] < 1.0


@pytest.mark.parametrize("scale", [1e-40, 1e-20, 1.0, 1e3, 1e19, 1e37])
@pytest.mark.parametrize("count", [1, 2, 1000, (1 << 20) + 1])
def test_a_sum_of_squares_is_right_and_the_same_in_any_order(count, scale):
    x = torch.randn(count, generator=torch.Generator().manual_seed(count)) * scale
    shuffled = x[torch.randperm(count)]
    padded = torch.cat([x, torch.zeros(7)]).view(-1, 1)
    found = sum_of_squares(x, of=count)
    assert found == sum_of_squares(shuffled, of=count) == sum_of_squares(padded, of=count)
    assert found == sum_of_products(x, x, of=count) == sums_of_squares(torch.stack([x, 2 * x]), of=count)[0]
    assert found == pytest.approx(float(x.double().square().sum()), rel=1e-5)


@pytest.mark.parametrize("scale", [1e-40, 1.0, 1e37])
@pytest.mark.parametrize("count", [1, 1000, (1 << 20) + 1])
def test_a_sum_of_products_is_right_and_the_same_in_any_order(count, scale):
    draw = torch.Generator().manual_seed(count)
    x, y = torch.randn(count, generator=draw) * scale, torch.randn(count, generator=draw)
    order = torch.randperm(count)
    found = sum_of_products(x, y, of=count)
    assert found == sum_of_products(x[order], y[order], of=count) == sum_of_products(y, x, of=count)
    norms = float(x.double().norm()) * float(y.double().norm())
    assert found == pytest.approx(float((x.double() * y.double()).sum()), abs=1e-6 * norms)


def test_sums_have_the_same_bits_for_every_number_of_values_at_a_time(monkeypatch):
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(1000, generator=draw), torch.randn(1000, generator=draw) * 1e-3
    expected = sum_of_products(x, y, of=1000), sum_of_squares(x, of=1000)
    for size in (1, 7, 999):
        monkeypatch.setattr(exact_norms, "BLOCK", size)
        assert (sum_of_products(x, y, of=1000), sum_of_squares(x, of=1000)) == expected


def test_sums_of_products_at_the_edges():
    assert sum_of_products(torch.zeros(3), torch.ones(3), of=3) == sum_of_products(torch.ones(0), torch.ones(0), of=0)
    assert sum_of_products(torch.tensor([3.0, -4.0]), torch.tensor([2.0, 1.0]), of=2) == 2.0
    huge = torch.tensor([1e300], dtype=torch.float64)
    assert sum_of_products(huge, -huge, of=1) == -math.inf


def test_sums_of_squares_at_the_edges():
    assert sum_of_squares(torch.zeros(0), of=5) == sum_of_squares(torch.zeros(3), of=3) == 0.0
    assert sum_of_squares(torch.tensor([3.0, -4.0]), of=1 << 40) == 25.0
    largest = torch.tensor([torch.finfo(torch.float32).max])
    assert sum_of_squares(largest, of=1) == float(largest.double().square())
    assert sum_of_squares(torch.tensor([1e300], dtype=torch.float64), of=1) == math.inf
    assert sum_of_squares(torch.tensor([5e-324], dtype=torch.float64), of=1) == 0.0
