"""The codec that rotates: what the rotation does to a payload, and how payloads are combined."""

import pytest
import torch

from outerloop.aggregate.centered_clip import CenteredClip
from outerloop.aggregate.geometric_median import GeometricMedian
from outerloop.aggregate.mean import Mean
from outerloop.aggregate.median import Median
from outerloop.aggregate.median_clip import MedianClip
from outerloop.aggregate.senders import Senders
from outerloop.aggregate.trimmed_mean import TrimmedMean
from outerloop.aggregate.trust import Trust
from outerloop.compress.identity import Identity
from outerloop.compress.index.rice import Rice
from outerloop.compress.rotated import Rotated
from outerloop.compress.sign import Sign
from outerloop.compress.topk import TopK
from outerloop.exchange.inprocess import Hub, InProcess
from outerloop.feedback.ef import ErrorFeedback
from outerloop.types import CodecContext, UserError
from tests.support import toy

NOW = CodecContext(round=3, seed=2**64 - 5)
LARGEST = torch.finfo(torch.float32).max


def seeded(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def topk_signs(chunk, k):
    return TopK(chunk=chunk, k=k, values=Sign(chunk=None), index=Rice())


def sent(codec, x, context=NOW):
    """What a tensor decodes to at the other end."""
    return codec.decode(codec.encode(x, context), x.shape, context)


@pytest.mark.parametrize("shape", [(), (1,), (4096,), (97, 101), (3, 0)], ids=str)
def test_a_rotation_loses_rounding_only_and_is_linear(shape):
    codec = Rotated(chunk=256, of=Identity())
    a, b = seeded(*shape, seed=1), seeded(*shape, seed=2)
    assert codec.linear and not Rotated(chunk=256, of=topk_signs(256, 4)).linear
    assert torch.allclose(sent(codec, a), a, atol=1e-5)
    added = {part: x + codec.encode(b, NOW)[part] for part, x in codec.encode(a, NOW).items()}
    assert torch.allclose(codec.decode(added, a.shape, NOW), a + b, atol=1e-5)


@pytest.mark.parametrize("value", [LARGEST, -LARGEST, 1e-44])
def test_the_ends_of_the_range_stay_finite(value):
    x = torch.full((64,), value)
    assert sent(Rotated(chunk=64, of=topk_signs(64, 4)), x).isfinite().all()


def test_one_large_value_becomes_equal_magnitudes():
    """A unit vector of 256 values is rotated to 256 magnitudes of 1/16, so every kept sign brings the same share."""
    x = torch.zeros(256)
    x[17] = 16.0
    rotated = Rotated(chunk=256, of=Identity()).encode(x, NOW)["value"]
    assert set(rotated.abs().tolist()) == {1.0}


def test_no_coordinate_waits_where_some_are_always_larger():
    """Half of the values are ten times as large: top-k sends none of the others. After a rotation, most arrive."""
    x = seeded(4096) * torch.tensor([10.0, 1.0]).repeat(2048)
    plain, rotated = topk_signs(4096, 72), Rotated(chunk=4096, of=topk_signs(4096, 72))
    assert not sent(plain, x)[1::2].any()
    small = sent(rotated, x)[1::2]
    assert float((small != 0).float().mean()) > 0.8 and float(small @ x[1::2]) > 0


def test_the_rotation_changes_with_the_round_and_the_tensor():
    codec, x = Rotated(chunk=64, of=topk_signs(64, 4)), seeded(640)
    assert not torch.equal(sent(codec, x), sent(codec, x, CodecContext(round=4, seed=6)))


@pytest.mark.parametrize("chunk", [0, 1, 2, 8, 100, 2048, 4**9])
def test_other_lengths_are_refused(chunk):
    with pytest.raises(UserError, match=f"chunk={chunk} must be a power of 4"):
        Rotated(chunk=chunk, of=Identity())


@pytest.mark.parametrize(
    "aggregate",
    [
        *[Mean(), Senders(), Median(), TrimmedMean(trim=0.25), MedianClip(of=Median())],
        *[CenteredClip(iterations=3), GeometricMedian(iterations=4), Trust()],
    ],
    ids=lambda aggregate: type(aggregate).__name__,
)
def test_decoded_payloads_are_dense_so_any_aggregate_takes_them(aggregate):
    """Four workers train a toy model and agree bit for bit, whatever combines the payloads."""

    def work(exchange):
        net = toy.model(width=16)
        loop = toy.outer(
            net, exchange, h=1, aggregate=aggregate, compress=Rotated(chunk=64, of=topk_signs(64, 16)),
            feedback=ErrorFeedback(beta=0.9),
        )  # fmt: skip
        before = [x.clone() for x in loop.slow.values()]
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.01 * seeded(*p.shape, seed=exchange.rank)
        [report] = loop.after_inner_step(1)
        assert not report.failed and len(report.peers) == 4
        assert any(not torch.equal(x, old) for x, old in zip(loop.slow.values(), before, strict=True))
        return [x.clone() for x in loop.slow.values()]

    first, *others = toy.run_workers(4, work)
    assert all(torch.equal(x, y) for slow in others for x, y in zip(first, slow, strict=True))


def test_rotated_values_are_combined_and_only_the_result_is_rotated_back():
    """Two peers send one rotated value each, at different positions: both have one sender, so neither is halved."""
    codec, x = Rotated(chunk=64, of=topk_signs(64, 1)), [seeded(64, seed=0), seeded(64, seed=3)]
    kept = [codec.coefficients(codec.encode(one, NOW), one.shape, NOW) for one in x]
    assert [int((one != 0).sum()) for one in kept] == [1, 1] and not ((kept[0] != 0) & (kept[1] != 0)).any()
    mean = codec.inverse(Senders()(kept, [1, 1], []), NOW)
    assert torch.allclose(mean, sent(codec, x[0]) + sent(codec, x[1]), atol=1e-6)


def test_the_kernels_rotate_once_and_take_no_codec_that_rotates_twice_or_other_chunks():
    once = Rotated(chunk=64, of=topk_signs(64, 4))
    assert once.sparse_codec(torch.Size([640])) is not None
    assert Rotated(chunk=64, of=once).sparse_codec(torch.Size([640])) is None
    assert Rotated(chunk=256, of=topk_signs(64, 4)).sparse_codec(torch.Size([640])) is None


def test_an_outer_loop_accepts_it_with_the_median():
    toy.outer(
        toy.model(), InProcess(hub=Hub(2), rank=0), aggregate=Median(),
        compress=Rotated(chunk=64, of=topk_signs(64, 4)), feedback=ErrorFeedback(beta=0.9),
    )  # fmt: skip
