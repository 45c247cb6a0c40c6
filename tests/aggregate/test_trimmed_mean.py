"""The trimmed mean: by hand, its limits, and not with compressors of which each peer sends other values."""

import pytest
import torch

from outerloop.aggregate import median
from outerloop.aggregate.median import Median
from outerloop.aggregate.trimmed_mean import TrimmedMean
from outerloop.config import instantiate, load
from outerloop.exchange.inprocess import Hub, InProcess
from outerloop.types import UserError
from tests.support import toy

LARGEST = torch.finfo(torch.float32).max


def of(trim, *peers):
    """The trimmed mean of these lists of numbers."""
    return TrimmedMean(trim=trim)([torch.tensor(x) for x in peers], [1] * len(peers), []).tolist()


def test_by_hand():
    assert of(0.25, [1.0, 0.0], [2.0, -8.0], [4.0, 1.0], [90.0, 3.0]) == [3.0, 0.5]
    assert of(0.25, [1.0], [5.0]) == [3.0], "a quarter of two peers is none"
    assert of(0.0, [1.0], [5.0], [9.0]) == [5.0]
    assert of(0.4, [1.0], [5.0], [9.0], [7.0], [-3.0]) == [5.0], "two of five at each end: the median"


def test_the_dropped_share_is_not_rounded():
    """In floating point, 0.29 · 100 is below 29, so one outlier would be left. The mean of 29, 30, ..., 70 is 49.5."""
    assert of(0.29, *[[1000.0]] * 29, *([float(i)] for i in range(71))) == [49.5]


@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 0, 2), (2, 3, 5)])
def test_shape_stays_and_the_input_too(shape):
    sent = [torch.randn(shape) for _ in range(4)]
    before = [x.clone() for x in sent]
    assert TrimmedMean(trim=0.25)(sent, [1] * 4, []).shape == shape
    assert all(map(torch.equal, sent, before))


def test_the_bits_do_not_depend_on_the_order_of_peers_or_on_the_pieces(monkeypatch):
    draw = torch.Generator().manual_seed(0)
    sent = [torch.randn(1000, generator=draw) * 10 ** torch.randn(1000, generator=draw) for _ in range(5)]
    for x in sent:
        x[::7], x[1::7] = 0.0, -0.0
    first = TrimmedMean(trim=0.2)(sent, [1] * 5, []).view(torch.int32)
    assert torch.equal(TrimmedMean(trim=0.2)(sent[::-1], [1] * 5, []).view(torch.int32), first)
    monkeypatch.setattr(median, "PIECE", 33)
    assert torch.equal(TrimmedMean(trim=0.2)(sent, [1] * 5, []).view(torch.int32), first)


@pytest.mark.parametrize("value", [LARGEST, -LARGEST, 0.0])
def test_a_quarter_of_the_peers_cannot_move_it_out_of_the_range_of_the_others(value):
    honest = torch.randn(6, 50)
    result = TrimmedMean(trim=0.25)([*honest, *[torch.full((50,), value)] * 2], [1] * 8, [])
    assert (honest.min(0).values <= result).all() and (result <= honest.max(0).values).all()


def test_trimming_all_but_the_middle_is_the_median():
    sent = [torch.randn(100) for _ in range(7)]
    assert torch.equal(TrimmedMean(trim=0.49)(sent, [1] * 7, []), Median()(sent, [1] * 7, []))


@pytest.mark.parametrize("trim", [-0.1, 0.5, 1.0, float("nan")])
def test_bad_fractions_are_refused(trim):
    with pytest.raises(
        UserError, match=f"aggregate.trim={trim} must be at least 0 and below 0.5: set aggregate.trim=0.25"
    ):
        TrimmedMean(trim=trim)


@pytest.mark.parametrize("compress", ["topk", "threshold"])
def test_with_a_sparse_compressor_it_is_refused_in_one_sentence(compress):
    codec = instantiate.make(load.compose_config([f"compress={compress}"]).compress)
    with pytest.raises(UserError, match="drops what few peers send: set aggregate=senders"):
        toy.outer(toy.model(), InProcess(hub=Hub(2), rank=0), aggregate=TrimmedMean(trim=0.25), compress=codec)
