"""Compiled kernels equal their definitions bit for bit, whatever the input and the number of threads; and by hand."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outerloop.kernels.eight_bit import BLOCK, to_eight_bit
from outerloop.kernels.exact_squares import exact_squares
from outerloop.kernels.finite import all_finite, finite
from outerloop.kernels.land import Landing, land
from outerloop.kernels.reference import pack_codes
from outerloop.kernels.rotation import random_signs
from outerloop.kernels.select import Rows, Selection, absolute, select
from outerloop.kernels.sign import sign_decode, sign_encode
from outerloop.kernels.two_bit import two_bit_decode, two_bit_encode
from tests.support import toy_pipelines

SIZES = [0, 1, 2, 7, 4095, 4096, 4097, 10007]
SHAPES = [(4096, 64), (4096, 128), (4096, 4096), (64, 3), (100, 7)]
KINDS = ["gaussian", "zero", "equal", "ties", "denormal", "huge"]
FAST = [torch.float32, torch.bfloat16]


def state(kind, n, dtype):
    """slow, fast, residual"""
    generator = torch.Generator().manual_seed(n)
    slow, noise, residual = (torch.randn(n, generator=generator) for _ in range(3))
    zero = torch.zeros(n)
    return {
        "gaussian": (slow, (slow + 0.01 * noise).to(dtype), 0.01 * residual),
        "zero": (zero, zero.to(dtype), zero.clone()),
        "equal": (torch.ones(n), zero.to(dtype), zero.clone()),
        "ties": ((3 * slow).round(), zero.to(dtype), zero.clone()),
        "denormal": (slow * 1e-42, zero.to(dtype), residual * 1e-43),
        "huge": (slow * 3e37, zero.to(dtype), residual * 1e37),
    }[kind]


def bits(x):
    """Floats as the integers of their bits, so that -0 is not 0 and NaN is NaN."""
    return x.view(torch.int16 if x.itemsize == 2 else torch.int32) if x.is_floating_point() else x


def same(x, y):
    return x is y or (x.dtype == y.dtype and torch.equal(bits(x), bits(y)))


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def residuals(residual, chunk):
    """What the passes take for a residual: float32 without scales, and 8 bits with them where chunks allow it."""
    return [(residual, None), *([to_eight_bit(residual)] if chunk % BLOCK == 0 else [])]


def copies(*tensors):
    return [x if x is None else x.clone() for x in tensors]


def definition(op):
    """The plain torch function that an operator was declared with."""
    return op.definition


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", SIZES)
def test_select_equals_its_definition(kind, n):
    for dtype, (chunk, k) in itertools.product(FAST, SHAPES):
        slow, fast, residual = state(kind, n, dtype)
        held, how = [(slow, fast, *both) for both in residuals(residual, chunk)], Selection(0.95, chunk, k)
        for inputs in [*held, (slow, fast, None, None), (slow, None, None, None)]:
            expected = definition(select)(*inputs, None, how)
            for count in (1, 3):
                torch.set_num_threads(count)
                got = select(*inputs, None, how)
                assert same(got[0], expected[0]) and same(got[1], expected[1])
                assert kind == "huge" or torch.allclose(got[2], expected[2])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    ("own", "by_senders", "mu", "nesterov"),
    [(2, True, 0.0, False), (0, False, 0.9, True), (-1, True, 0.9, False), (1, False, 0.0, False)],
)
def test_land_equals_its_definition(kind, n, own, by_senders, mu, nesterov):
    for dtype, (chunk, k), eight_bit in itertools.product(FAST, SHAPES[:1] + SHAPES[2:], (False, True)):
        if eight_bit and chunk % BLOCK:
            continue
        slow, fast, residual = state(kind, n, dtype)
        held = residuals(residual, chunk)[eight_bit]
        sent = [definition(select)(torch.randn(n), None, None, None, None, Selection(0.0, chunk, k)) for _ in range(2)]
        sent.append(definition(select)(slow, fast, *held, None, Selection(0.95, chunk, k)))
        position, value = torch.stack([s[0] for s in sent]), torch.stack([s[1] for s in sent])
        value[0, : min(1, value.shape[1])] = 0.0
        own_sent = None if kind == "equal" else 3 * value[max(own, 0)]
        how = Landing(own, 0.95, chunk, k, by_senders, 0.7, mu, nesterov)
        momentum = torch.randn(n) if mu else None
        expected = copies(slow, fast, *held, momentum)
        squares = definition(land)(*expected, position, value, own_sent, None, None, how)
        for count in (1, 3):
            torch.set_num_threads(count)
            got = copies(slow, fast, *held, momentum)
            sum_of_squares = land(*got, position, value, own_sent, None, None, how)
            assert kind == "huge" or torch.allclose(sum_of_squares, squares)
            assert all(same(x, y) for x, y in zip(got, expected, strict=True))


@pytest.mark.parametrize("kind", ["gaussian", "denormal", "huge"])
@pytest.mark.parametrize("n", [0, 1, 4095, 4097, 10007])
def test_a_rotated_selection_and_its_landing_equal_their_definition(kind, n):
    for dtype, (chunk, k), eight_bit, mu in itertools.product(FAST, [(4096, 64), (256, 9)], (False, True), (0.0, 0.9)):
        slow, fast, residual = state(kind, n, dtype)
        held, signs = residuals(residual, chunk)[eight_bit], random_signs(n, n)
        expected = definition(select)(slow, fast, *held, signs, Selection(0.95, chunk, k))
        other = definition(select)(torch.randn(n), None, None, None, None, Selection(0.0, chunk, k))
        position, value = torch.stack([expected[0], other[0]]), torch.stack([expected[1], other[1]])
        how, momentum = Landing(0, 0.95, chunk, k, True, 0.7, mu, False), torch.randn(n) if mu else None
        landed = copies(slow, fast, *held, momentum)
        squares = definition(land)(*landed, position, value, None, signs, None, how)
        for count in (1, 3):
            torch.set_num_threads(count)
            got = select(slow, fast, *held, signs, Selection(0.95, chunk, k))
            assert same(got[0], expected[0]) and same(got[1], expected[1])
            state_after = copies(slow, fast, *held, momentum)
            sum_of_squares = land(*state_after, position, value, None, signs, None, how)
            assert kind == "huge" or torch.allclose(sum_of_squares, squares)
            assert all(same(x, y) for x, y in zip(state_after, landed, strict=True))


@pytest.mark.parametrize("kind", ["gaussian", "zero", "denormal", "huge"])
@pytest.mark.parametrize("n", [0, 1, 4095, 10007])
def test_a_landing_that_keeps_unsent_values_or_later_progress_equals_its_definition(kind, n):
    cases = itertools.product(FAST, [(4096, 64), (256, 9)], (False, True), (0.0, 0.9), (0.0, 0.7), (False, True))
    for dtype, (chunk, k), rotated, mu, share, late in cases:
        slow, fast, progress = state(kind, n, dtype)
        signs, momentum = random_signs(n, n) if rotated else None, torch.randn(n) if mu else None
        sent = [definition(select)(x, None, None, None, signs, Selection(0.0, chunk, k)) for x in (slow - fast, slow)]
        position, value = torch.stack([s[0] for s in sent]), torch.stack([s[1] for s in sent])
        held = (None, None) if share else residuals(0.1 * slow, chunk)[bool(mu)]
        own = int(late)
        how = Landing(own, 0.0 if share else 0.95, chunk, k, not late, 0.7, mu, True, share)
        tensors = slow, fast, *held, momentum, (fast + progress).to(dtype) if late else None
        offered, value = (value[own], 0.5 * value) if rotated else (None, value)  # clipped to half
        *expected, current = copies(*tensors)
        squares = definition(land)(*expected, position, value, offered, signs, current, how)
        assert not late or same(expected[1], fast), "the weights at the launch"
        for count in (1, 3):
            torch.set_num_threads(count)
            *got, theta = copies(*tensors)
            sum_of_squares = land(*got, position, value, offered, signs, theta, how)
            assert kind == "huge" or torch.allclose(sum_of_squares, squares)
            assert all(same(x, y) for x, y in zip([*got, theta], [*expected, current], strict=True))


def test_a_landing_that_keeps_unsent_values_by_hand():
    """Two of four values were sent: slow 8, fast 7, 6, 5, 4 at the launch, and 1 more since then."""
    slow, fast = torch.full((4,), 8.0), torch.tensor([7.0, 6.0, 5.0, 4.0])
    theta, position, value = fast + 1, torch.tensor([[2, 3]], dtype=torch.int32), torch.tensor([[3.0, 4.0]])
    how = Landing(0, 0.0, 4, 2, by_senders=False, lr=1.0, mu=0.0, nesterov=False, unsent_share=0.5)
    land(slow, fast, None, None, None, position, value, None, None, theta, how)
    assert slow.tolist() == [8, 8, 5, 4] and theta.tolist() == [1 + 8 - 0.5 * 1, 1 + 8 - 0.5 * 2, 1 + 5, 1 + 4]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_rotated_chunk_with_a_value_that_is_not_finite_is_not_finite(bad):
    """Otherwise its magnitude would be the largest finite one, and the run would not see that training has diverged."""
    x = torch.randn(10000)
    x[5000] = bad
    for function in (select, definition(select)):
        _, value, _ = function(x, None, None, None, random_signs(10000, 3), Selection(0.0, 4096, 64))
        assert value[64:128].isnan().all() and value[:64].isfinite().all() and value[128:].isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 64, 65, 4095, 10007])
def test_two_bits_equal_their_definition(kind, n):
    x = state(kind, n, torch.float32)[0]
    for group in (1, 2, 3, 7, 64, 100, 4096):
        expected = definition(two_bit_encode)(x, group)
        back = definition(two_bit_decode)(*([part, part] for part in expected), n, group)
        for count in (1, 3):
            torch.set_num_threads(count)
            got = two_bit_encode(x, group)
            assert all(map(same, got, expected)) and same(
                two_bit_decode(*([part, part] for part in got), n, group), back
            )


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 64, 4095, 200_003])
def test_decoded_signs_equal_their_definition(n):
    draw = torch.Generator().manual_seed(n)
    for group in (1, 3, 8, 72, 4096):
        codes = [pack_codes(torch.randint(2, (n,), generator=draw, dtype=torch.uint8), 1) for _ in range(3)]
        scales = [torch.randn(-(-n // group), generator=draw).abs().to(torch.bfloat16) for _ in range(3)]
        expected = definition(sign_decode)(codes, scales, n, group)
        assert expected.shape == (3, n)
        for count in (1, 2):
            torch.set_num_threads(count)
            assert same(sign_decode(codes, scales, n, group), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 64, 4095, 200_003])
def test_encoded_signs_equal_their_definition(kind, n):
    x = state(kind, n, torch.float32)[0]
    for group in (1, 3, 8, 72, 4096):
        expected = definition(sign_encode)(x, group)
        for count in (1, 3):
            torch.set_num_threads(count)
            assert all(map(same, sign_encode(x, group), expected))


def test_signs_are_encoded_with_the_mean_magnitude_of_their_group():
    code, scale = sign_encode(torch.tensor([-1.0, 2.0, -3.0, -0.5, 0.0]), 3)
    assert code.tolist() == [0b00001101] and scale.tolist() == [2.0, 0.25]


def test_signs_decode_to_plus_and_minus_the_magnitude_of_their_group():
    code, scale = torch.tensor([0b00001101], dtype=torch.uint8), torch.tensor([2.0, 0.5], dtype=torch.bfloat16)
    assert sign_decode([code], [scale], 5, 3).tolist() == [[-2.0, 2.0, -2.0, -0.5, 0.5]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 7, 4097, 200_003])
def test_exact_squares_equal_their_definition_and_exact_arithmetic(kind, n):
    x = torch.stack([state(kind, n, torch.float32)[0] * factor for factor in (1.0, 1e-3, 0.0)])
    width = 62 - n.bit_length()
    expected = definition(exact_squares)(x, width)
    for count in (1, 2):
        torch.set_num_threads(count)
        assert all(map(same, exact_squares(x, width), expected))
    seven = x[:, :7]
    for row, found in zip(seven.tolist(), exact_squares(seven, width)[1].tolist(), strict=True):
        scale = Fraction(2) ** (width - 2 * math.frexp(max(map(abs, row)))[1])
        assert found == sum(math.floor(Fraction(value) ** 2 * scale) for value in row)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_exact_squares_of_a_row_that_is_not_finite(bad):
    x = torch.ones(2, 70_000)
    x[0, 69_999] = bad
    for function in (exact_squares, definition(exact_squares)):
        top, total = function(x, 40)
        assert not top[0].isfinite() and total.tolist() == [0, 70_000 << 38] and top[1] == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_not_finite_are_selected(bad):
    x = torch.randn(10000)
    x[5000] = bad
    for function in (select, definition(select)):
        position, value, _ = function(x, None, None, None, None, Selection(0.0, 4096, 64))
        at = absolute(position, Rows(10000, 4096, 64)).tolist().index(5000)
        assert not value[at].isfinite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("n", [0, 1, 7, 4097, 200_003])
def test_finite_values_are_distinguished_from_others(n, dtype):
    x = state("huge", n, torch.float32)[0].clamp(-6e4, 6e4).to(dtype)
    assert all_finite(x)
    for bad, at in itertools.product([float("nan"), float("inf"), float("-inf")], {0, n // 2, n - 1} if n else ()):
        broken = x.clone()
        broken[at] = bad
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert not all_finite(broken) and not all_finite(broken.view(1, -1)) and not definition(finite)(broken)


def test_select_and_land_by_hand():
    """Two chunks of three, one value kept of each; two peers, one of them this one."""
    slow, fast = torch.tensor([1.0, 2, 3, 4, 5, 6]), torch.tensor([0.5, 2, 5, 4, 4, 6])
    residual = torch.tensor([2.0, 0, 0, 0, 0, -4])
    position, value, squares = select(slow, fast, residual, None, None, Selection(0.5, 3, 1))
    # x = slow - fast + residual / 2 = [1.5, 0, -2, 0, 1, -2]
    assert position.tolist() == [2, 2] and value.tolist() == [-2, -2] and squares.item() == 0.25 + 4 + 1
    positions, values = torch.stack([position, torch.tensor([2, 0]).int()]), torch.tensor([[-2.0, -2], [4, 6]])
    how = Landing(own=0, beta=0.5, chunk=3, k=1, by_senders=True, lr=1.0, mu=0.0, nesterov=False)
    land(slow, fast, residual, None, None, positions, values, None, None, None, how)
    # mean by senders: [0, 0, (-2 + 4) / 2, 6, 0, -2]
    assert slow.tolist() == [1, 2, 2, -2, 5, 8] and fast.tolist() == slow.tolist()
    assert residual.tolist() == [1.5, 0, 0, 0, 1, 0]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9000), st.sampled_from(SHAPES), st.integers(0, 2**32 - 1))
def test_selection_is_the_largest_magnitudes(n, shape, seed):
    chunk, k = shape
    x = torch.randn(n, generator=torch.Generator().manual_seed(seed))
    position, value, _ = select(x, None, None, None, None, Selection(0.0, chunk, k))
    at = absolute(position, Rows(n, chunk, k))
    assert torch.equal(x[at], value) and len(set(at.tolist())) == len(at)
    for start in range(0, n, chunk):
        row, inside = x[start : start + chunk].abs(), (at >= start) & (at < start + chunk)
        assert int(inside.sum()) == -(-k * len(row) // chunk)
        left = row.clone()
        left[at[inside] - start] = 0
        assert value[inside].abs().min() >= left.max()


def test_the_operators_trace_whole():
    """Fake kernels give the right shapes: a function that uses the operators compiles without a graph break."""

    def step(slow, fast, residual, scale=None):
        position, value, _ = select(slow, fast, residual, scale, None, Selection(0.95, 256, 3))
        code, level = two_bit_encode(value, 3)
        back = two_bit_decode([code], [level], value.numel(), 3)[0]
        how = Landing(0, 0.95, 256, 3, by_senders=True, lr=1.0, mu=0.0, nesterov=False)
        land(slow, fast, residual, scale, None, position[None], back[None], None, None, None, how)
        return back

    for eight_bit in (False, True):
        slow, fast, residual = state("gaussian", 600, torch.float32)
        tensors = [slow, fast, *residuals(residual, 256)[eight_bit]]
        twins = copies(*tensors)
        expected = step(*tensors)
        got = torch.compile(step, fullgraph=True, backend="aot_eager")(*twins)
        assert same(got, expected) and all(map(same, twins, tensors))


@pytest.mark.parametrize(
    ("operator", "more"),
    [(select, (None, None, None, None, 0.0, 64, 3)), (two_bit_encode, (64,)), (sign_encode, (64,)), (finite, ())],
)
def test_torch_finds_the_operators_well_declared(operator, more):
    torch.library.opcheck(operator.overload, (torch.randn(200), *more))


@pytest.mark.parametrize("recipe", toy_pipelines.FUSED)
@pytest.mark.parametrize("dtype", FAST)
def test_both_routes_through_a_round_come_to_the_same_bits(recipe, dtype):
    """Slow, fast, residual and momentum after some rounds, the fused route against the plain one."""
    fused, plain = toy_pipelines.trained(recipe, dtype, fused=True), toy_pipelines.trained(recipe, dtype, fused=False)
    assert fused.keys() == plain.keys()
    for name, x in fused.items():
        assert same(x, plain[name]), name


LATE = [*((recipe, torch.float32) for recipe in ("sparseloco", "clipped", "local", "eight_bit", "momentum"))]
LATE.append(("sparseloco", torch.bfloat16))


@pytest.mark.parametrize(("recipe", "dtype"), LATE)
@pytest.mark.parametrize(("delay", "merge_local"), [(1, 0.0), (2, 0.5), (0, 0.5), (2, "carry")])
def test_both_routes_come_to_the_same_bits_when_rounds_land_late(recipe, dtype, delay, merge_local):
    """Inner steps between launch and landing, and a part of the fast weights kept."""
    late = {"delay": delay, "merge_local": merge_local}
    fused, plain = (toy_pipelines.trained(recipe, dtype, fused=one, **late) for one in (True, False))
    prompt = toy_pipelines.trained(recipe, dtype, fused=True)
    for name, x in fused.items():
        assert same(x, plain[name]), name
    assert not all(same(x, prompt[name]) for name, x in fused.items())
