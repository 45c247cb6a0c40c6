"""One contract for every compressor, fed by configs/compress/*.yaml."""

import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop import wire
from outerloop.compress.by_size import BySize
from outerloop.compress.cast import Cast
from outerloop.compress.identity import Identity
from outerloop.compress.index.fixed import Fixed
from outerloop.compress.index.rice import Rice
from outerloop.compress.topk import TopK
from outerloop.compress.two_bit import TwoBit
from outerloop.config import instantiate, load
from outerloop.feedback.ef import ErrorFeedback
from outerloop.kernels.specs import sparse_codec
from outerloop.types import CodecContext, UserError

NOW = CodecContext(round=3, seed=5)
NAMES = load.groups()["compress"]
SHAPES = [(), (0,), (1,), (2,), (7,), (4095,), (4096,), (4097,), (3, 0, 2), (97, 101), (2, 64, 64)]
LOSSLESS = {"identity"}


@functools.cache
def compressor(name):
    return instantiate.make(load.compose_config([f"compress={name}"]).compress)


@pytest.fixture(scope="module", params=NAMES)
def codec(request):
    return request.param, compressor(request.param)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shape_dtype_and_input_kept(codec, shape):
    x = torch.randn(shape)
    before = x.clone()
    back = codec[1].decode(codec[1].encode(x, NOW), x.shape, NOW)
    assert back.shape == x.shape and back.dtype == torch.float32
    assert torch.equal(x, before)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_same_seed_same_bytes(codec, shape):
    x = torch.randn(shape)
    first, second = (codec[1].encode(x.clone(), NOW) for _ in range(2))
    assert first.keys() == second.keys()
    assert all(wire.bytes_view(first[part]) == wire.bytes_view(second[part]) for part in first)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 9000), st.sampled_from([1e-30, 1e-4, 1.0, 1e30]), st.integers(0, 2**31))
def test_error_is_never_longer_than_the_input(count, scale, seed):
    x = scale * torch.randn(count, generator=torch.Generator().manual_seed(seed))
    for name in NAMES:
        codec = compressor(name)
        error = x - codec.decode(codec.encode(x, NOW), x.shape, NOW)
        assert error.double().norm() <= x.double().norm() * (1 + 1e-6), name


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([(1, 1), (3, 5), (80, 90), (4097,), (7, 2, 300)]),
    st.sampled_from([0, 3, 12]),
    st.integers(0, 2**31),
)
def test_error_is_never_longer_where_magnitudes_differ_by_orders(shape, decades, seed):
    """Some values zero, the others spread over orders of magnitude, whole rows louder than others."""
    draw = torch.Generator().manual_seed(seed)
    exponent = decades * (
        torch.randn(shape, generator=draw) + torch.randn(shape[:1] + (1,) * (len(shape) - 1), generator=draw)
    )
    x = torch.randn(shape, generator=draw) * 10 ** exponent.clamp(-37, 37)
    x = torch.where(torch.rand(shape, generator=draw) < 0.3, 0.0, x).clamp(-3e38, 3e38)
    for name in NAMES:
        codec = compressor(name)
        error = x - codec.decode(codec.encode(x, NOW), x.shape, NOW)
        assert error.double().norm() <= x.double().norm() * (1 + 1e-6), name


@pytest.mark.parametrize("value", [0.0, 1.0, -2.5, 1e-41, 3e38])
def test_constant_inputs_stay_finite(codec, value):
    x = torch.full((4100,), value)
    assert codec[1].decode(codec[1].encode(x, NOW), x.shape, NOW).isfinite().all()


@pytest.mark.parametrize("shape", [(1,), (4097,), (97, 101)], ids=str)
def test_an_update_is_the_sent_part_plus_the_residual(codec, shape):
    """beta = 1 telescopes over ten rounds, whatever the compressor drops."""
    feedback = ErrorFeedback(beta=1.0)
    put_in = sent = torch.zeros(shape, dtype=torch.float64)
    for _ in range(10):
        delta = torch.randn(shape)
        x = feedback.add("w", delta)
        decoded = codec[1].decode(codec[1].encode(x, NOW), x.shape, NOW)
        feedback.keep("w", x, decoded)
        put_in, sent = put_in + delta.double(), sent + decoded.double()
    held = feedback.residual.get("w").double()
    assert torch.allclose(put_in, sent + held, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", sorted(LOSSLESS))
def test_lossless_ones_lose_nothing(name):
    x = torch.randn(4097)
    assert torch.equal(compressor(name).decode(compressor(name).encode(x, NOW), x.shape, NOW), x)


@pytest.mark.parametrize("count", [50, 5000])
def test_parts_of_linear_compressors_add_up(codec, count):
    _, c = codec
    a, b = torch.randn(count), torch.randn(count)
    if not c.linear:
        pytest.skip("not linear")
    added = {part: x + c.encode(b, NOW)[part] for part, x in c.encode(a, NOW).items()}
    expected = c.decode(c.encode(a, NOW), a.shape, NOW) + c.decode(c.encode(b, NOW), b.shape, NOW)
    assert torch.allclose(c.decode(added, a.shape, NOW), expected, atol=0.05)


def test_garbled_parts_are_a_value_error(codec):
    x = torch.randn(5000)
    for part in codec[1].encode(x, NOW):
        parts = codec[1].encode(x, NOW)
        parts[part] = parts[part].reshape(-1)[:-1].clone()
        with pytest.raises(ValueError):
            codec[1].decode(parts, x.shape, NOW)


@pytest.mark.parametrize("seed", range(12))
def test_garbage_of_the_right_size_is_refused_or_decodes_to_finite_values(codec, seed):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(97, 101, generator=draw)
    honest = codec[1].encode(x, NOW)
    for part, value in honest.items():
        noise = torch.randint(256, (value.numel() * value.element_size(),), dtype=torch.uint8, generator=draw)
        try:
            back = codec[1].decode(honest | {part: noise.view(value.dtype).view(value.shape)}, x.shape, NOW)
        except ValueError:
            continue
        assert back.shape == x.shape and back.isfinite().all(), part


def test_a_missing_part_and_a_part_of_another_dtype_are_refused(codec):
    x = torch.randn(97, 101)
    honest = codec[1].encode(x, NOW)
    for part, value in honest.items():
        with pytest.raises((ValueError, KeyError)):
            codec[1].decode({name: other for name, other in honest.items() if name != part}, x.shape, NOW)
        wrong = value.float() if value.dtype == torch.uint8 else value.to(torch.uint8)
        with pytest.raises(ValueError):
            codec[1].decode(honest | {part: wrong}, x.shape, NOW)


@pytest.mark.parametrize("shape", [(7,), (97, 101)], ids=str)
@pytest.mark.parametrize("unknown", ["junk", "values.junk", "values.values.code", "next"])
def test_unknown_parts_and_parts_in_another_order_are_refused(codec, shape, unknown):
    """Otherwise, peers would download any number of bytes in each round for nothing."""
    honest, size = codec[1].encode(torch.randn(shape), NOW), torch.Size(shape)
    more = {unknown: torch.zeros(3, dtype=torch.uint8)}
    forged = [honest | more, more | honest, dict(reversed(honest.items()))]
    for parts in forged if len(honest) > 1 else forged[:2]:
        with pytest.raises(ValueError):
            codec[1].decode(parts, size, NOW)
        if sparse := sparse_codec(codec[1], size):
            with pytest.raises(ValueError):
                sparse.unpack([honest, parts], sparse.rows_at(size.numel(), NOW), NOW)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_message_there_and_back(codec, shape):
    """Every part is of a dtype that the wire knows, the message is within its limit, and decodes to the same bits."""
    x = torch.randn(shape)
    schema = {"w": x.shape}
    header = wire.Header(round=3, fragment=0, samples=1, schema=wire.schema_hash(schema), slow=0, peer="a")
    blob = wire.pack(header, {"w": codec[1].encode(x, NOW)})
    back = codec[1].decode(wire.unpack(blob, schema).parts["w"], x.shape, NOW)
    assert torch.equal(back, codec[1].decode(codec[1].encode(x, NOW), x.shape, NOW))


@pytest.mark.parametrize(("count", "k"), [(4096, 128), (8192, 64), (4097, 128), (100, 128), (4099, 32), (1, 1)])
def test_topk_bytes_are_the_formula(count, k):
    """12-bit positions, 2-bit codes, two bfloat16 levels a chunk; a ragged chunk keeps its share, rounded up."""
    parts = TopK(chunk=4096, k=k, values=TwoBit(chunk=None), index=Fixed()).encode(torch.randn(count), NOW)
    whole, rest = divmod(count, 4096)
    kept = whole * k + math.ceil(k * rest / 4096)
    groups = math.ceil(kept / k)
    expected = math.ceil(12 * kept / 8) + math.ceil(2 * kept / 8) + 4 * groups
    assert sum(len(wire.bytes_view(part)) for part in parts.values()) == expected


def test_topk_keeping_everything_equals_its_values():
    x = torch.randn(5, 1000)
    codec = TopK(chunk=128, k=128, values=Identity(), index=Rice())
    assert torch.equal(codec.decode(codec.encode(x, NOW), x.shape, NOW), x)


def test_topk_refuses_positions_out_of_range_and_out_of_order():
    codec = TopK(chunk=3000, k=2, values=Identity(), index=Fixed())
    good = codec.encode(torch.randn(3000), NOW)
    from outerloop.kernels.reference import pack_bits

    for positions in ([5, 5], [7, 3], [1, 3000]):
        with pytest.raises(ValueError, match="ascend"):
            codec.decode(good | {"index": pack_bits(torch.tensor(positions), 12)}, torch.Size([3000]), NOW)


def test_levels_that_are_not_finite_are_refused():
    codec = TwoBit(chunk=8)
    parts = codec.encode(torch.randn(8), NOW)
    parts["level"][0, 0] = math.nan
    with pytest.raises(ValueError, match="level"):
        codec.decode(parts, torch.Size([8]), NOW)


def test_two_bit_levels_of_equal_values_in_float64_are_finite():
    """In float64, a rounded mean of equal values may be less than all of them, so that there is no lower level."""
    codec, x = TwoBit(chunk=None), torch.full((10,), 0.3, dtype=torch.float64)
    parts = codec.encode(x, NOW)
    assert all(torch.equal(parts[key], there) for key, there in codec.encode(x.float(), NOW).items())
    assert (codec.decode(parts, x.shape, NOW) - 0.3).abs().max() < 1e-3


def test_two_bit_error_on_what_topk_keeps():
    """Gaussian, k 64 of 4096: relative L2 error of the sent values at most .068."""
    x = torch.randn(256, 4096)
    exact = TopK(chunk=4096, k=64, values=Identity(), index=Rice())
    coarse = TopK(chunk=4096, k=64, values=TwoBit(chunk=None), index=Rice())
    kept = exact.decode(exact.encode(x, NOW), x.shape, NOW)
    sent = coarse.decode(coarse.encode(x, NOW), x.shape, NOW)
    assert float((sent - kept).norm() / kept.norm()) <= 0.068


def test_by_size_sends_small_tensors_in_bfloat16():
    codec = BySize(below=100, small=Cast(dtype="bfloat16"), large=TwoBit(chunk=64))
    assert codec.encode(torch.randn(99), NOW)["value"].dtype == torch.bfloat16
    assert codec.encode(torch.randn(100), NOW).keys() == {"code", "level"}


@pytest.mark.parametrize(
    "make",
    [
        lambda: Cast(dtype="int8"),
        lambda: TopK(chunk=1, k=1, values=Identity(), index=Rice()),
        lambda: TopK(chunk=64, k=0, values=Identity(), index=Rice()),
        lambda: TopK(chunk=64, k=65, values=Identity(), index=Rice()),
        lambda: TwoBit(chunk=0),
        lambda: ErrorFeedback(beta=1.5),
    ],
)
def test_bad_settings_are_refused(make):
    with pytest.raises(UserError):
        make()


def test_sparsity_warm_up_by_hand():
    """chunk 1024, k 1 over ten rounds: halved every round; every round's payload decodes in that round."""
    codec = TopK(chunk=1024, k=1, values=TwoBit(chunk=None), warmup_rounds=10, index=Rice())
    assert [codec.k_at(round) for round in range(12)] == [1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1, 1]
    x = torch.randn(3000)
    for round in range(12):
        now = CodecContext(round=round, seed=0)
        sent = codec.decode(codec.encode(x, now), x.shape, now)
        assert int((sent != 0).sum()) == 2 * codec.k_at(round) + math.ceil(codec.k_at(round) * 952 / 1024)
