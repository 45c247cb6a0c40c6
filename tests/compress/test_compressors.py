"""Each compressor by hand: values someone can check on paper, bytes that equal a formula, what adds up and what not."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop import wire
from outerloop.compress.cast import Cast
from outerloop.compress.dct import Dct, basis, dct_rows, idct_rows
from outerloop.compress.energy_topk import EnergyTopK
from outerloop.compress.fp4 import Fp4
from outerloop.compress.identity import Identity
from outerloop.compress.index.rice import Rice
from outerloop.compress.powersgd import PowerSgd
from outerloop.compress.randomk import RandomK
from outerloop.compress.sigma_bins import SigmaBins
from outerloop.compress.sign import Sign
from outerloop.compress.threshold import Threshold, exponential, fitted
from outerloop.compress.topk import TopK
from outerloop.compress.two_bit import TwoBit
from outerloop.compress.uniform import Uniform
from outerloop.config import instantiate, load
from outerloop.kernels.reference import pack_bits, pack_codes, pack_gaps, unpack_codes, unpack_gaps
from outerloop.types import CodecContext, UserError

NOW = CodecContext(round=3, seed=5)
COUNTS = [0, 1, 2, 7, 255, 256, 257, 4097]


def sent(codec, x, context=NOW):
    """What a tensor decodes to at the other end."""
    return codec.decode(codec.encode(x, context), x.shape, context)


def size(parts):
    """Bytes of all parts."""
    return sum(len(wire.bytes_view(part)) for part in parts.values())


def seeded(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# --- codes and gaps ---


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("count", COUNTS)
def test_codes_are_packed_as_bits_are(bits, count):
    code = torch.randint(2**bits, (count,), dtype=torch.uint8)
    assert torch.equal(pack_codes(code, bits), pack_bits(code, bits))
    assert torch.equal(unpack_codes(pack_codes(code, bits), bits, count), code)


def test_gaps_by_hand():
    """Skipped before 0: none; between 0 and 3: 2; 3 and 300: 296 = 255 + 41; 300 and the end: 699 = 255 + 255 + 189."""
    packed = pack_gaps(torch.tensor([0, 3, 300]), 1000)
    assert packed.tolist() == [0, 2, 255, 41, 255, 255, 189]
    assert unpack_gaps(packed, 1000, at_most=3).tolist() == [0, 3, 300]
    assert pack_gaps(torch.tensor([], dtype=torch.int64), 255).tolist() == [255, 0]


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(0, 2999)), st.integers(3000, 3600))
def test_gaps_there_and_back(positions, count):
    position = torch.tensor(sorted(positions), dtype=torch.int64)
    packed = pack_gaps(position, count)
    assert packed.numel() <= len(positions) + 1 + count // 255
    assert torch.equal(unpack_gaps(packed, count, at_most=len(positions)), position)
    if positions:
        with pytest.raises(ValueError):
            unpack_gaps(packed, count, at_most=len(positions) - 1)


@pytest.mark.parametrize("stream", [[], [255], [3], [9], [10, 255], [5, 5], [5, 4, 0], [255, 255, 255], [0] * 20])
def test_gaps_that_do_not_end_at_the_end_are_refused(stream):
    with pytest.raises(ValueError):
        unpack_gaps(torch.tensor(stream, dtype=torch.uint8), 10, at_most=10)


# --- one scale a group ---


def test_int4_by_hand():
    """scale 7 / 7 = 1; rounded 7, -3, 1, 0 (half to even); stored + 7: 14, 4, 8, 7, the first in the low half."""
    x = torch.tensor([7.0, -3.4, 0.6, -0.5])
    parts = Uniform(bits=4, chunk=4).encode(x, NOW)
    assert parts["code"].tolist() == [14 + 16 * 4, 8 + 16 * 7] and parts["scale"].tolist() == [1.0]
    assert sent(Uniform(bits=4, chunk=4), x).tolist() == [7.0, -3.0, 1.0, 0.0]


def test_two_bits_and_int8_by_hand():
    x = torch.tensor([2.0, -2.0, 0.9, 1.1])
    assert Uniform(bits=2, chunk=4).encode(x, NOW)["code"].tolist() == [2 + 4 * 0 + 16 * 1 + 64 * 2]
    assert sent(Uniform(bits=2, chunk=4), x).tolist() == [2.0, -2.0, 0.0, 2.0]
    x = torch.tensor([254.0, -128.8, 0.0])
    assert Uniform(bits=8, chunk=4).encode(x, NOW)["code"].tolist() == [254, 63, 127]
    assert sent(Uniform(bits=8, chunk=4), x).tolist() == [254.0, -128.0, 0.0]


def test_fp4_by_hand():
    """Levels 0, 1, 2, 4, .. 64 at scale 64. Half way (48, .5) goes down; a code is 8 for minus, plus the exponent."""
    x = torch.tensor([64.0, -32.0, 48.0, 48.5, 0.5, -0.6])
    parts = Fp4(chunk=6).encode(x, NOW)
    assert parts["code"].tolist() == [7 + 16 * (8 + 6), 6 + 16 * 7, 0 + 16 * (8 + 1)]
    assert sent(Fp4(chunk=6), x).tolist() == [64.0, -32.0, 32.0, 64.0, 0.0, -1.0]


def test_sign_by_hand():
    """Mean magnitude 6 / 4; only the second value has its bit set; zero counts as positive."""
    x = torch.tensor([1.0, -2.0, 3.0, 0.0])
    parts = Sign(chunk=4).encode(x, NOW)
    assert parts["code"].tolist() == [2] and parts["scale"].tolist() == [1.5]
    assert sent(Sign(chunk=4), x).tolist() == [1.5, -1.5, 1.5, 1.5]


def test_each_group_has_its_own_scale():
    x = torch.tensor([1000.0, -1000.0, 1.0, -1.0, 0.01])
    for codec in (Uniform(bits=2, chunk=2), Fp4(chunk=2), Sign(chunk=2)):
        assert torch.allclose(sent(codec, x), x, rtol=0.01), type(codec)


@pytest.mark.parametrize("codec", [Uniform(bits=8, chunk=None), Fp4(chunk=None), Sign(chunk=None)])
def test_without_a_chunk_a_group_is_what_the_outer_codec_says_or_everything(codec):
    x = torch.randn(10)
    assert codec.encode(x, NOW)["scale"].shape == (1,)
    assert codec.encode(x, CodecContext(round=3, seed=5, group=4))["scale"].shape == (3,)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    ("codec", "bits"),
    [
        (Uniform(bits=2, chunk=256), 2),
        (Uniform(bits=4, chunk=256), 4),
        (Uniform(bits=8, chunk=256), 8),
        (Fp4(chunk=256), 4),
        (Sign(chunk=256), 1),
    ],
)
def test_bytes_are_the_codes_and_two_bytes_a_group(codec, bits, count):
    assert size(codec.encode(torch.randn(count), NOW)) == math.ceil(bits * count / 8) + 2 * math.ceil(count / 256)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-(2.0**127), 2.0**127, width=32), min_size=1, max_size=40))
def test_no_single_value_ends_up_further_away_than_unsent(values):
    """Round to nearest with zero among the levels: true of every value, not only of the whole."""
    x = torch.tensor(values)
    for codec in (Uniform(bits=2, chunk=8), Uniform(bits=4, chunk=8), Uniform(bits=8, chunk=8), Fp4(chunk=8)):
        error = (x.double() - sent(codec, x).double()).abs()
        assert (error <= x.double().abs() * (1 + 1e-6)).all(), type(codec)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=40), st.integers(1, 8))
def test_uniform_misses_by_half_a_step_at_most(values, group):
    x = torch.tensor(values)
    codec = Uniform(bits=8, chunk=group)
    step = codec.encode(x, NOW)["scale"].double().repeat_interleave(group)[: x.numel()]
    tiny = 1e-40  # where bfloat16 scales are coarse
    assert ((x.double() - sent(codec, x).double()).abs() <= 0.501 * step + 128 * tiny).all()


def test_a_uniform_code_without_a_level_is_refused():
    codec = Uniform(bits=4, chunk=4)
    parts = codec.encode(torch.ones(2), NOW) | {"code": torch.tensor([15], dtype=torch.uint8)}
    with pytest.raises(ValueError, match="above 14"):
        codec.decode(parts, torch.Size([2]), NOW)


@pytest.mark.parametrize("codec", [Uniform(bits=8, chunk=4), Fp4(chunk=4), Sign(chunk=4)])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_a_scale_that_is_negative_or_not_finite_is_refused(codec, bad):
    parts = codec.encode(torch.randn(4), NOW)
    parts["scale"][0] = bad
    with pytest.raises(ValueError, match="scale"):
        codec.decode(parts, torch.Size([4]), NOW)


def test_the_error_of_sign_is_what_pythagoras_says():
    """‖x − x̂‖² = ‖x‖² − L (mean |x|)²."""
    x = seeded(4096).double()
    error = float((x - sent(Sign(chunk=4096), x.float()).double()).square().sum())
    assert error == pytest.approx(float(x.square().sum()) - 4096 * float(x.abs().mean()) ** 2, rel=1e-4)


# --- the authors' bins ---


def test_sigma_bins_by_hand():
    """mean 0, σ² = 20 / 3, scale 3.87: -3 in bin 1, ±1 in bin 2, 3 in bin 3. Bin means -3, 0, 3; bin 0 is empty."""
    x = torch.tensor([-3.0, -1.0, 1.0, 3.0])
    parts = SigmaBins().encode(x, NOW)
    assert parts["code"].tolist() == [1 + 4 * 2 + 16 * 2 + 64 * 3]
    assert sent(SigmaBins(), x).tolist() == [-3.0, 0.0, 0.0, 3.0]
    assert sent(SigmaBins(), x + 100).tolist() == [97.0, 100.0, 100.0, 103.0]


@pytest.mark.parametrize("count", COUNTS)
def test_sigma_bins_bytes_are_the_formula(count):
    assert size(SigmaBins().encode(torch.randn(count), NOW)) == math.ceil(count / 4) + 16


# --- random-k ---


def test_randomk_by_hand():
    """torch.rand of seed 0 begins .496 .768 .089 .132: the two largest are at 0 and 1."""
    codec = RandomK(chunk=4, k=2, values=Identity())
    x = torch.tensor([5.0, 6.0, 7.0, 8.0])
    assert sent(codec, x, CodecContext(round=0, seed=0)).tolist() == [5.0, 6.0, 0.0, 0.0]


@pytest.mark.parametrize(("count", "k"), [(0, 8), (1, 8), (63, 8), (64, 1), (65, 8), (1000, 64)])
def test_randomk_sends_values_only(count, k):
    codec = RandomK(chunk=64, k=k, values=Cast(dtype="bfloat16"))
    kept = count // 64 * k + math.ceil(k * (count % 64) / 64)
    assert size(codec.encode(torch.randn(count), NOW)) == 2 * kept
    x = torch.ones(count)
    assert int(sent(codec, x).sum()) == kept


def test_randomk_positions_come_from_the_seed_and_every_position_gets_its_turn():
    codec = RandomK(chunk=16, k=4, values=Identity())
    x = torch.ones(16 * 8)
    rounds = torch.stack([sent(codec, x, CodecContext(round=0, seed=seed)) for seed in range(500)])
    assert torch.equal(rounds[7], sent(codec, x, CodecContext(round=9, seed=7)))
    assert not torch.equal(rounds[0].view(8, 16)[0], rounds[0].view(8, 16)[1])
    assert (rounds.mean(0) - 0.25).abs().max() < 0.1  # five standard deviations of 500 draws


@pytest.mark.parametrize("context", [NOW, CodecContext(round=4, seed=6)])
def test_randomk_of_float32_values_adds_up_exactly(context):
    codec = RandomK(chunk=64, k=9, values=Identity())
    a, b = seeded(3, 77, seed=1), seeded(3, 77, seed=2)
    added = {part: x + codec.encode(b, context)[part] for part, x in codec.encode(a, context).items()}
    assert torch.equal(codec.decode(added, a.shape, context), sent(codec, a, context) + sent(codec, b, context))
    assert torch.equal(sent(codec, a + b, context), sent(codec, a, context) + sent(codec, b, context))


def test_linear_is_what_the_inner_codec_is():
    assert RandomK(chunk=8, k=2, values=Cast(dtype="float16")).linear
    assert not RandomK(chunk=8, k=2, values=Sign(chunk=None)).linear
    assert Dct(chunk=8, of=Identity()).linear and not Dct(chunk=8, of=Sign(chunk=8)).linear


# --- cosine transform ---


def test_dct_by_hand():
    """Two values: sum and difference over √2. A constant: all in the first. (1, 0, -1): all in the second, √2."""
    half = math.sqrt(0.5)
    for x, expected in [
        ([3.0, 1.0], [4 * half, 2 * half]),
        ([1.0, 1.0, 1.0, 1.0], [2.0, 0.0, 0.0, 0.0]),
        ([1.0, 0.0, -1.0], [0.0, math.sqrt(2), 0.0]),
    ]:
        c = dct_rows(torch.tensor([x], dtype=torch.float64))
        assert torch.allclose(c, torch.tensor([expected], dtype=torch.float64), atol=1e-8)


@pytest.mark.parametrize("length", [1, 2, 3, 6, 12, 31, 64, 65, 96])
def test_dct_is_its_definition_and_orthonormal(length):
    d = basis(length)
    assert torch.allclose(d @ d.T, torch.eye(length, dtype=torch.float64), atol=1e-7)
    x = seeded(5, length).double()
    assert torch.allclose(dct_rows(x), x @ d.T, atol=1e-7)
    assert torch.allclose(idct_rows(dct_rows(x)), x, atol=1e-7)


@pytest.mark.parametrize("shape", [(0,), (1,), (63,), (64,), (65,), (97, 101)], ids=str)
def test_dct_of_identity_loses_rounding_only_and_adds_up(shape):
    codec = Dct(chunk=64, of=Identity())
    a, b = seeded(*shape, seed=1), seeded(*shape, seed=2)
    assert torch.allclose(sent(codec, a), a, atol=1e-6)
    added = {part: x + codec.encode(b, NOW)[part] for part, x in codec.encode(a, NOW).items()}
    assert torch.allclose(codec.decode(added, a.shape, NOW), a + b, atol=2e-6)


def test_dct_keeps_a_slow_wave_in_few_coefficients():
    """A cosine of the basis is one coefficient of 64, where 1 value of 64 says nothing of it."""
    x = 3 * basis(64)[5].float()
    one = TopK(chunk=64, k=1, values=Identity(), index=Rice())
    assert torch.allclose(sent(Dct(chunk=64, of=one), x), x, atol=1e-6)
    assert (sent(one, x) - x).norm() > 0.95 * x.norm()


def inverse_by_hand(c):
    """The inverse transform of one chunk in Python's floats, which are rounded after every operation everywhere."""
    half = len(c) // 2
    if len(c) % 2:
        return in_order(c, basis(len(c)).tolist())
    even = [x * math.sqrt(0.5) for x in inverse_by_hand(c[0::2])]
    odd = in_order(c[1::2], basis(len(c))[1::2, :half].tolist())
    return [e + o for e, o in zip(even, odd, strict=True)] + [e - o for e, o in zip(even, odd, strict=True)][::-1]


def in_order(c, rows):
    out = [c[0] * weight for weight in rows[0]]
    for x, row in zip(c[1:], rows[1:], strict=True):
        out = [so_far + x * weight for so_far, weight in zip(out, row, strict=True)]
    return out


def test_dct_decodes_to_the_same_bits_everywhere():
    """One rounding after every operation, in a fixed order: no vector unit, thread or math library changes a bit."""
    c = (torch.arange(64 * 50 + 37) * 7919 % 1009).float() / 64 - 8
    back = Dct(chunk=64, of=Identity()).decode({"value": c}, c.shape, NOW)
    by_hand = [x for chunk in c.split(64) for x in inverse_by_hand(chunk.tolist())]
    assert torch.equal(back, torch.tensor(by_hand, dtype=torch.float64).float())


# --- low rank ---


def test_powersgd_by_hand():
    """All ones, 4 x 16: P = ±1/2, Q = ∓ or ±2, the product is 1, exactly. 2 bytes for each of 4 + 16."""
    codec = PowerSgd(rank=1, small=Identity())
    parts = codec.encode(torch.ones(4, 16), NOW)
    assert parts["p"].abs().tolist() == [[0.5]] * 4 and parts["q"].abs().tolist() == [[2.0]] * 16
    assert torch.equal(codec.decode(parts, torch.Size([4, 16]), NOW), torch.ones(4, 16))
    assert size(parts) == 2 * (4 + 16)


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_powersgd_recovers_a_matrix_of_its_rank(rank):
    x = seeded(40, rank, seed=1) @ seeded(rank, 60, seed=2)
    codec = PowerSgd(rank=rank, small=Identity())
    assert float((sent(codec, x) - x).norm() / x.norm()) < 0.01
    assert size(codec.encode(x, NOW)) == 2 * rank * (40 + 60)
    assert torch.equal(sent(codec, x.view(40, 6, 10)), sent(codec, x).view(40, 6, 10))


@pytest.mark.parametrize("shape", [(), (5,), (0, 9), (9, 0), (1, 100), (4, 4), (100, 1)], ids=str)
def test_powersgd_sends_what_would_not_shrink_through_small(shape):
    x = torch.randn(shape)
    assert torch.equal(sent(PowerSgd(rank=2, small=Identity()), x), x)


@pytest.mark.parametrize("rank", [1, 3, 4])
@pytest.mark.parametrize("value", [0.0, 1e-41, 1e-30, 3e38])
def test_powersgd_stays_finite_and_no_longer_than_the_input(rank, value):
    x = torch.full((40, 50), value)
    x[::3] *= -1
    error = x.double() - sent(PowerSgd(rank=rank, small=Identity()), x).double()
    assert error.isfinite().all() and error.norm() <= x.double().norm() * (1 + 1e-6)


def test_powersgd_refuses_factors_out_of_range():
    codec = PowerSgd(rank=2, small=Identity())
    honest = codec.encode(torch.randn(20, 30), NOW)
    for part, bad in [("p", 1.5), ("p", math.nan), ("q", 3e38), ("q", math.inf)]:
        with pytest.raises(ValueError, match="factor"):
            codec.decode(honest | {part: torch.full_like(honest[part], bad)}, torch.Size([20, 30]), NOW)


# --- fitted threshold ---


def test_exponential_threshold_by_hand():
    """Six 1 and two 9: mean 3. A quarter wanted: 3 ln 4. An eighth: then the 9s, mean 9, half of them: no further."""
    x = torch.tensor([1.0] * 6 + [9.0] * 2)
    assert exponential(x, 2) == pytest.approx(3 * math.log(4))
    assert exponential(x, 1) == pytest.approx(3 * math.log(4) + (9 - 3 * math.log(4)) * math.log(2))
    assert sent(Threshold(share=0.25, values=Identity()), x).tolist() == [0.0] * 6 + [9.0] * 2


@pytest.mark.parametrize("share", [0.5, 0.1, 1 / 32, 0.001])
@pytest.mark.parametrize("kind", ["gauss", "laplace", "flat", "heavy", "half zero"])
def test_threshold_sends_about_its_share_whatever_the_distribution(kind, share):
    """Within a fifth, also where the model is wrong. `flat` is what feedback makes of a chunk."""
    x = seeded(20000)
    x = {
        "gauss": x,
        "laplace": x * seeded(20000, seed=1).square().add(seeded(20000, seed=2).square()).sqrt(),
        "flat": x.sign() * (1 + 0.01 * x),
        "heavy": x.sign() * torch.exp(4 * x),
        "half zero": torch.where(x > 0, x, 0.0),
    }[kind]
    kept = int((sent(Threshold(share=share, values=Identity()), x) != 0).sum())
    assert share * 20000 / 1.21 <= kept <= 1.2 * math.ceil(share * 20000)


def test_threshold_where_there_is_nothing_to_choose():
    """Zeros: none. All equal: the first of its share and a fifth. One giant among dwarfs: at least the giant."""
    codec = Threshold(share=0.1, values=Identity())
    assert size(codec.encode(torch.zeros(100), NOW)) == 1
    assert sent(codec, torch.ones(100)).tolist() == [1.0] * 12 + [0.0] * 88
    x = torch.full((1000,), 1e-30)
    x[77] = 1e30
    assert sent(codec, x)[77] == 1e30
    assert fitted(torch.zeros(0), 0) == 0.0


@pytest.mark.parametrize("count", COUNTS)
def test_threshold_bytes_are_bounded(count):
    codec = Threshold(share=0.1, values=Cast(dtype="float16"))
    parts = codec.encode(torch.randn(count), NOW)
    kept = parts["values.value"].numel()
    assert kept <= 1.2 * math.ceil(0.1 * count) and parts["gap"].numel() <= kept + 1 + count // 255


def test_threshold_refuses_more_than_its_share():
    codec, x = Threshold(share=0.1, values=Identity()), torch.randn(100)
    greedy = Threshold(share=0.5, values=Identity()).encode(x, NOW)
    with pytest.raises(ValueError, match="gaps"):
        codec.decode(greedy, x.shape, NOW)


# --- adaptive k ---


def ladder(target):
    return EnergyTopK(chunk=8, k_min=1, k_max=4, target=target, values=Identity(), index=Rice())


def test_adaptive_by_hand():
    """Squares 16 + 9 of 25: one value is .64, two are all. Eight ones: 1/8, 2/8, 4/8, and 4 is the budget."""
    x = torch.tensor([4.0, 3.0, 0, 0, 0, 0, 0, 0])
    steps = [int(ladder(target).encode(x, NOW)["step"]) for target in (0.0, 0.64, 0.65, 1.0)]
    assert steps == [0, 0, 1, 1]
    assert [int(ladder(t).encode(torch.ones(8), NOW)["step"]) for t in (0.1, 0.2, 0.5, 1.0)] == [0, 1, 2, 2]
    assert sent(ladder(0.65), x).tolist() == x.tolist()


def test_adaptive_ladder_doubles_up_to_the_budget():
    def steps(low, high):
        codec = EnergyTopK(chunk=4096, k_min=low, k_max=high, target=0.5, values=Identity(), index=Rice())
        return [rung.k for rung in codec.ladder]

    assert steps(32, 256) == [32, 64, 128, 256] and steps(30, 100) == [30, 60, 100] and steps(7, 7) == [7]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 3000), st.floats(0, 1), st.floats(0.1, 5), st.integers(0, 2**31))
def test_adaptive_takes_the_least_that_reaches_the_target(count, target, spread, seed):
    x = torch.exp(spread * seeded(count, seed=seed)) * seeded(count, seed=seed + 1).sign()
    codec = EnergyTopK(chunk=512, k_min=4, k_max=100, target=target, values=Identity(), index=Rice())
    parts = codec.encode(x, NOW)
    step = int(parts["step"])
    gains = [float(sent(rung, x).double().square().sum() / x.double().square().sum()) for rung in codec.ladder]
    assert all(gain < target + 1e-12 for gain in gains[:step])
    assert step == len(codec.ladder) - 1 or count == 0 or gains[step] >= target - 1e-12
    assert size(parts) == 1 + size(codec.ladder[step].encode(x, NOW))


@pytest.mark.parametrize("step", [[3], [255], [0, 0], []])
def test_adaptive_refuses_a_step_that_is_not_on_the_ladder(step):
    parts = ladder(0.5).encode(torch.randn(8), NOW)
    with pytest.raises(ValueError, match="step"):
        ladder(0.5).decode(parts | {"step": torch.tensor(step, dtype=torch.uint8)}, torch.Size([8]), NOW)


# --- as values of topk ---


@pytest.mark.parametrize(
    ("name", "bits", "side"),
    [("topk_sign", 1, 2), ("topk", 2, 4), ("topk_int8", 8, 2), ("topk_fp16", 16, 0)],
)
def test_topk_variants_differ_in_the_bytes_of_a_value_only(name, bits, side):
    """10 chunks of 4096, k 128: beside the positions `bits` a value, `side` bytes a chunk."""
    codec = instantiate.make(load.compose_config([f"compress={name}"]).compress)
    parts = codec.encode(torch.randn(10, 4096), NOW)
    del parts["index"]
    assert size(parts) == 10 * (128 * bits // 8 + side)


@pytest.mark.parametrize(("name", "bound"), [("topk_sign", 0.15), ("topk_int8", 0.01), ("topk_fp16", 0.001)])
def test_error_on_what_topk_keeps(name, bound):
    """Gaussian, k 128 of 4096: relative L2 error of the kept values."""
    x = seeded(16, 4096)
    codec = instantiate.make(load.compose_config([f"compress={name}"]).compress)
    kept = sent(TopK(chunk=4096, k=128, values=Identity(), index=Rice()), x)
    assert float((sent(codec, x) - kept).norm() / kept.norm()) <= bound


def test_per_chunk_scales_beat_the_bins_where_chunks_differ():
    """Chunks .01 .. 10 loud: the authors' bins lose most of the kept values, two levels a chunk a tenth of them."""
    x = seeded(64, 4096) * torch.logspace(-2, 1, 64)[:, None]
    kept = sent(TopK(chunk=4096, k=64, values=Identity(), index=Rice()), x)

    def error(values):
        return float((sent(TopK(chunk=4096, k=64, values=values, index=Rice()), x) - kept).norm() / kept.norm())

    assert error(TwoBit(chunk=None)) < 0.07 and error(SigmaBins()) > 0.3


@pytest.mark.parametrize(
    "make",
    [
        lambda: Uniform(bits=3, chunk=8),
        lambda: Uniform(bits=8, chunk=0),
        lambda: Fp4(chunk=-1),
        lambda: Sign(chunk=0),
        lambda: RandomK(chunk=8, k=9, values=Identity()),
        lambda: RandomK(chunk=8, k=0, values=Identity()),
        lambda: Dct(chunk=0, of=Identity()),
        lambda: Dct(chunk=1025, of=Identity()),
        lambda: PowerSgd(rank=0, small=Identity()),
        lambda: Threshold(share=0.0, values=Identity()),
        lambda: Threshold(share=1.5, values=Identity()),
        lambda: EnergyTopK(chunk=8, k_min=5, k_max=4, target=0.5, values=Identity(), index=Rice()),
        lambda: EnergyTopK(chunk=8, k_min=1, k_max=9, target=0.5, values=Identity(), index=Rice()),
        lambda: EnergyTopK(chunk=8, k_min=1, k_max=4, target=1.5, values=Identity(), index=Rice()),
    ],
)
def test_bad_settings_are_refused(make):
    with pytest.raises(UserError, match=r"must be|is not one of"):
        make()
