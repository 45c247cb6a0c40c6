"""The coordinate-wise median: by hand, bit for bit, and not with compressors of which each peer sends other values."""

import itertools
import math

import pytest
import torch

from outerloop.aggregate import median
from outerloop.aggregate.median import Median
from outerloop.aggregate.median_clip import MedianClip
from outerloop.compress.uniform import Uniform
from outerloop.config import instantiate, load, part_checks
from outerloop.exchange.inprocess import Hub, InProcess
from outerloop.types import UserError
from tests.support import toy

LARGEST = torch.finfo(torch.float32).max


def of(*peers):
    """The median of these lists of numbers."""
    return Median()([torch.tensor(x) for x in peers], [1] * len(peers), []).tolist()


def test_by_hand():
    assert of([3.0, -1.0]) == [3.0, -1.0]
    assert of([3.0, -1.0], [5.0, -2.0]) == [4.0, -1.5]
    assert of([1.0, 9.0], [2.0, -4.0], [8.0, 0.5]) == [2.0, 0.5]
    assert of([1.0], [10.0], [4.0], [2.0]) == [3.0], "the mean of 2 and 4"
    assert of([7.0], [7.0], [1.0], [9.0], [0.0]) == [7.0]
    assert of([0.0], [0.0], [5.0], [0.0]) == [0.0], "what one of four sends is lost"


@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 0, 2), (2, 3, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shape_and_dtype_stay_and_the_input_too(shape, dtype):
    sent = [torch.randn(shape, dtype=dtype) for _ in range(3)]
    before = [x.clone() for x in sent]
    result = Median()(sent, [1, 1, 1], [])
    assert result.shape == shape and result.dtype == dtype
    assert all(map(torch.equal, sent, before))


def test_the_bits_do_not_depend_on_the_order_of_peers_or_on_the_pieces(monkeypatch):
    """Zeros of both signs, equal values, and values of all magnitudes."""
    draw = torch.Generator().manual_seed(0)
    sent = [torch.randn(1000, generator=draw) * 10 ** torch.randn(1000, generator=draw) for _ in range(4)]
    for x in sent:
        x[::7], x[1::7], x[2::7] = 0.0, -0.0, 1.5
    sent[0][:14] = -sent[0][:14]
    first = Median()(sent, [1] * 4, []).view(torch.int32)
    for order in itertools.permutations(sent):
        assert torch.equal(Median()(order, [1] * 4, []).view(torch.int32), first)
    monkeypatch.setattr(median, "PIECE", 33)
    assert torch.equal(Median()(sent, [1] * 4, []).view(torch.int32), first)


@pytest.mark.parametrize(("peers", "liars"), [(3, 1), (5, 2), (8, 3)])
def test_a_minority_cannot_move_it_out_of_the_range_of_the_others(peers, liars):
    draw = torch.Generator().manual_seed(peers)
    honest = torch.randn(peers - liars, 50, generator=draw)
    for value in (LARGEST, -LARGEST, 0.0):
        sent = [*honest, *[torch.full((50,), value)] * liars]
        result = Median()(sent, [1] * peers, [])
        assert (honest.min(0).values <= result).all() and (result <= honest.max(0).values).all()


def test_equal_contributions_are_their_own_median():
    x = torch.randn(100)
    assert all(torch.equal(Median()([x] * peers, [1] * peers, []), x) for peers in range(1, 7))


@pytest.mark.parametrize("compress", ["topk", "adaptive", "threshold", "dct"])
@pytest.mark.parametrize("aggregate", [Median(), MedianClip(of=Median())], ids=["median", "clipped"])
def test_with_a_sparse_compressor_it_is_refused_in_one_sentence(compress, aggregate):
    codec = instantiate.make(load.compose_config([f"compress={compress}"]).compress)
    with pytest.raises(UserError, match="the median of mostly zeros is 0: set aggregate=senders") as error:
        toy.outer(toy.model(), InProcess(hub=Hub(2), rank=0), aggregate=aggregate, compress=codec)
    assert "\n" not in str(error.value)


def test_the_command_line_refuses_it_too():
    with pytest.raises(UserError, match="set aggregate=senders, or compress=int8"):
        part_checks.check_parts(
            load.load(["recipe=sparseloco", "exchange=inprocess", "model=nano", "aggregate=median"])
        )


def test_in_the_loop_one_peer_that_sends_nonsense_changes_little():
    """Two of three peers train alike; the third moves a thousand times as far."""

    def work(exchange, liar):
        net = toy.model()
        loop = toy.outer(net, exchange, h=1, aggregate=Median(), compress=Uniform(bits=8, chunk=64))
        before = [x.clone() for x in loop.slow.values()]
        lr = 10.0 if exchange.rank == 2 and liar else 0.01
        toy.inner_step(net, torch.optim.SGD(net.parameters(), lr=lr), 0, 0)
        [report] = loop.after_inner_step(1)
        assert not report.failed and len(report.peers) == 3
        return math.hypot(*(float((x - old).norm()) for x, old in zip(loop.slow.values(), before, strict=True)))

    honest = toy.run_workers(3, lambda exchange: work(exchange, liar=False))
    assert toy.run_workers(3, lambda exchange: work(exchange, liar=True)) == honest, "the middle one of a, a, nonsense"
    assert honest[0] > 0


def test_the_mean_of_the_two_middle_values_does_not_overflow():
    assert Median()([torch.tensor([3e38]), torch.tensor([2e38])], [], []) == torch.tensor([2.5e38])
